"""NVIDIA devices through their driver's library: readings, GPM, XID events, processes, MIG. No exporter needed."""

from .source import NvmlSource

__all__ = ["NvmlSource"]
