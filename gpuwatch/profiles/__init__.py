"""Traces of the torch profiler, summarised: which classes of kernels take a device's time, and what that proves.

`read_trace` reads the Chrome trace that the profiler writes (also gzip), `summarise` adds it up, `readings` says what
follows, `render` prints. Names of operators, shapes and times only: a trace holds no token.
"""

from .classes import KERNEL_CLASSES, classify
from .findings import Reading, readings
from .show import render
from .summary import DeviceSummary, Share, summarise
from .trace import Trace, TraceError, read_trace

__all__ = [
    "KERNEL_CLASSES",
    "DeviceSummary",
    "Reading",
    "Share",
    "Trace",
    "TraceError",
    "classify",
    "read_trace",
    "readings",
    "render",
    "summarise",
]
