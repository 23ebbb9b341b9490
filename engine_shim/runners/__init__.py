"""What computes a step: torch, or a model of a device that only says how long it would take."""
