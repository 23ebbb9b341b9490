"""Fits a device profile to a real device: `python -m engine_shim.calibrate`."""
