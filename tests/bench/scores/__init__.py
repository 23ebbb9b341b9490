"""The parts of the scoreboard: what is played, what really happened, what was said of it, and how the two compare."""
