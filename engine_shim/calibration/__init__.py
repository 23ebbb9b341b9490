"""Fitting a device profile to a real device: what to run, how fast it is, and which profile explains that."""
