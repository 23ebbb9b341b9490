"""Eight devices through NVML at the default rates: what a call to the driver costs in Python.

Under the real binding, over the scripted library in C. The driver's own price is not in it, and cannot be known here.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from pathlib import Path

from tests.bench.row import Row
from tests.nvml import shared_object

DEVICES, SECONDS = 8, 120


class _Hand:
    """A clock that moves a second a look, so that every rate is the configured one."""

    t = 1e6

    def now(self) -> float:
        """Unix seconds."""
        return self.t


def read() -> Row:
    """Microseconds of Python per call; the library's own time is subtracted."""
    if shared_object.compiler() is None:
        return Row("µs", 10.0, note="needs a C compiler")
    import pynvml

    from gpuwatch.sources.gpu.nvml import NvmlSource

    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script"
        shared_object.write(script, DEVICES)
        os.environ["NVML_SCRIPT"] = str(script)
        library: ctypes.CDLL = shared_object.load(shared_object.build(Path(folder)))
        pynvml.nvmlLib = library
        pynvml._nvmlGetFunctionPointer_cache.clear()
        clock = _Hand()
        source = NvmlSource(clock, "bench")
        for _ in range(12):
            clock.t += 1
            source.look()
        before, began = source._library.calls, time.thread_time()
        for _ in range(SECONDS):
            clock.t += 1
            source.look()
        took_s, calls = time.thread_time() - began, source._library.calls - before
        own_s = library.scripted_own_ns(1_000_000) * 1e-9
        source._close()
    each_us = (took_s / calls - own_s) * 1e6
    note = (
        f"{DEVICES} devices, {calls / SECONDS:.0f} calls a second, {took_s / SECONDS * 1e3:.2f} ms of Python a second, "
        f"frames included; the scripted library itself takes {own_s * 1e6:.3f} µs a call"
    )
    return Row("µs", 10.0, now=each_us, note=note)
