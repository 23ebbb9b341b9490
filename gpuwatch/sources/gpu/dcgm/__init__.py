"""Devices by the page of an exporter: dcgm-exporter, AMD's device-metrics-exporter, or an agent with the role *node*."""

from .page import DcgmPage, GpuReport
from .source import DcgmSource

__all__ = ["DcgmPage", "DcgmSource", "GpuReport"]
