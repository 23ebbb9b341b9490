"""The engine's HTTP side: what clients may ask, what they get, and the bridge to the engine's thread."""
