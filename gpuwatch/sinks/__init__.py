"""Sinks tell the world of Transitions: one file per kind of receiver."""
