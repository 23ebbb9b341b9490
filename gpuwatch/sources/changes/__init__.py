"""What was changed: versions, arguments and labels of an engine and its pod, without their secrets."""
