"""The same faults in real time, behind the server."""
