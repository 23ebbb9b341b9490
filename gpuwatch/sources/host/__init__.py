"""The machine, the engine's processes and its container: what is read and with which rights is in docs/host.md."""

from .source import EngineHostSource, HostSource
from .world import World

__all__ = ["EngineHostSource", "HostSource", "World"]
