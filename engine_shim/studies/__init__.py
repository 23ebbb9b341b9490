"""Measurements of what the engine's mechanisms do: `python -m engine_shim.studies.NAME` prints a table (docs/engine.md)."""
