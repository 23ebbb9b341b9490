"""Recorded material: the capture format, read record by record."""
