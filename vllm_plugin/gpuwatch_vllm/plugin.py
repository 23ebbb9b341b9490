"""The stat logger that vLLM loads by itself (entry point group `vllm.stat_logger_plugins`), one for each engine rank.

It never raises into the engine. Where it cannot write, or when something it relies on has changed, it says so once in
vLLM's log and does nothing from then on. `GPUWATCH_RING_DIR` says where rings lie (default /dev/shm/gpuwatch),
`GPUWATCH_ENGINE` what this engine is called (default vllm), `GPUWATCH_RING=off` turns it off.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from .facts import caches_prefixes, facts_of, front_ends, kv_blocks, speculates
from .ring import Ring, ring_path
from .steps import StepRecorder, fields_for

log = logging.getLogger("vllm.gpuwatch")  # under vLLM's own name, so that its handlers print it


class StepRingLogger(StatLoggerBase):
    """Writes `<engine>-<rank>.ring`."""

    def __init__(self, vllm_config: Any, engine_index: int = 0, *_: Any, **__: Any) -> None:
        self._recorder: StepRecorder | None = None
        try:
            self._recorder = _open(vllm_config, engine_index)
        except Exception as error:
            self._stop("no step ring is written", error)

    def record(self, scheduler_stats: Any = None, iteration_stats: Any = None, *_: Any, **__: Any) -> None:
        """Take one engine output."""
        recorder = self._recorder
        if recorder is not None:
            try:
                recorder.record(scheduler_stats, iteration_stats)
            except Exception as error:
                self._stop("the step ring ends here", error)

    def log_engine_initialized(self) -> None:
        """Nothing: the ring says what the engine is from its start."""

    def log(self, *_: Any, **__: Any) -> None:
        """Nothing: the ring is written step by step."""

    def record_sleep_state(self, *_: Any, **__: Any) -> None:
        """The engine goes to sleep or wakes up."""
        if self._recorder is not None:
            self._recorder.interrupted()

    def _stop(self, what: str, error: Exception) -> None:
        recorder, self._recorder = self._recorder, None
        log.warning("gpuwatch: %s: %s: %s", what, type(error).__name__, error)
        if recorder is not None:
            try:
                recorder.close()
            except OSError as again:
                log.warning("gpuwatch: the step ring could not be closed: %s", again)


def _open(config: Any, rank: int) -> StepRecorder | None:
    """The recorder of a rank; None where there should be none."""
    if os.environ.get("GPUWATCH_RING", "").lower() in ("off", "0", "false"):
        return None
    servers = front_ends(config)
    if servers > 1:
        log.warning(
            "gpuwatch: no step ring is written: each of the %d API servers hears only a part of a step", servers
        )
        return None
    import vllm

    engine = os.environ.get("GPUWATCH_ENGINE") or "vllm"
    directory = os.environ.get("GPUWATCH_RING_DIR") or "/dev/shm/gpuwatch"  # noqa: S108  (the ring's contract)
    drafts = speculates(config)
    ring = Ring(
        ring_path(directory, engine, rank), engine, rank, fields_for(drafts),
        facts_of(config, str(getattr(vllm, "__version__", "")), sys.argv),
        unix_ns=time.time_ns(), monotonic_ns=time.monotonic_ns(),
    )  # fmt: skip
    log.info("gpuwatch: writing the step ring %s", ring.path)
    return StepRecorder(ring, kv_blocks(config), time.time, caches_prefixes=caches_prefixes(config), speculates=drafts)
