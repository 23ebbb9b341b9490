"""A second of the machine and of an engine with ten processes, next to psutil asked for the same numbers.

Real processes that sleep; the costly part (tree, threads, descriptors, limits) counts with a tenth.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import psutil

from tests.bench.row import Row

PROCESSES, THREADS, SECONDS = 10, 20, 20
_ENGINE = f"""
import subprocess, sys, threading
if sys.argv[1:]:
    children = [subprocess.Popen([sys.executable, "-c", {{!r}}], stdin=subprocess.PIPE) for _ in range({PROCESSES - 1})]
for _ in range({THREADS - 1}):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print("up", flush=True)
sys.stdin.readline()
"""
_WORKER = _ENGINE.format("")


def looked() -> Row:
    """Milliseconds of CPU a second."""
    from gpuwatch.model import Subject
    from gpuwatch.sources.host import EngineHostSource, HostSource

    words = [sys.executable, "-c", _ENGINE.format(_WORKER), "first"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        for _ in range(PROCESSES):
            engine.stdout.readline()
        machine = HostSource("bench")
        processes = EngineHostSource("bench", Subject(engine="e"), lambda: engine.pid)
        ours = _cpu_ms(lambda second: (machine.look(float(second)), processes.look(float(second))))
        first = psutil.Process(engine.pid)
        naive = _cpu_ms(lambda _: _asked(first))
        for child in first.children():
            child.kill()
        engine.kill()
    note = f"{PROCESSES} processes of {THREADS} threads; psutil: tree, CPU, memory, switches, descriptors, threads"
    return Row("ms/s", 4.0, now=ours, naive=naive, note=note)


def _cpu_ms(look: Callable[[int], object]) -> float:
    look(0)
    began = time.process_time()
    for second in range(1, SECONDS + 1):
        look(second)
    return (time.process_time() - began) / SECONDS * 1e3


def _asked(first: psutil.Process) -> None:
    (
        psutil.cpu_times(),
        psutil.virtual_memory(),
        psutil.swap_memory(),
        psutil.disk_io_counters(True),
        psutil.net_io_counters(True),
    )
    for process in (first, *first.children(recursive=True)):
        process.as_dict(["cpu_times", "memory_info", "num_ctx_switches", "num_fds", "threads", "create_time"])
