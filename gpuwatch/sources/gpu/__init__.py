"""Devices, by vendor and by exporter, and which engine each one serves."""
