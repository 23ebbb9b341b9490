"""What ring and page cost the engine, as a share of the CPU of its steps."""

from __future__ import annotations

import gc
import math
import statistics
import tempfile
import time
from itertools import count
from pathlib import Path

from engine_shim.model.sampling import GREEDY
from engine_shim.request import Request
from engine_shim.serving import ServeOptions, ServingEngine, build
from engine_shim.step import STEP_FIELDS
from tests.bench.measure import by_turns
from tests.bench.row import Row

PAIRS, REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 20, 16, 64, 32


def lost() -> Row:
    """Ring and page of a real torch engine: their own CPU in a step ÷ that of a step without them.

    The difference of whole runs, in interleaved pairs, is smaller than the noise of a shared machine; it stands in the note.
    """
    differences, bare = [], []
    with tempfile.TemporaryDirectory() as folder:
        told = build(ServeOptions(ring=True, ring_dir=Path(folder)), {"max_num_seqs": REQUESTS})
        silent = build(ServeOptions(), {"max_num_seqs": REQUESTS})
        silent.engine.telemetry = Silence()
        for turn in range(PAIRS + 2):
            order = (told, silent) if turn % 2 else (silent, told)
            cost = {id(engine): _seconds_per_step(engine, turn) for engine in order}
            if turn >= 2:  # the first turns warm caches up
                differences.append(cost[id(told)] / cost[id(silent)] - 1)
                bare.append(cost[id(silent)])
        step = _telemetry_per_step(told)
        told.telemetry.close()
        silent.telemetry.close()
    half = 1.96 * statistics.stdev(differences) / math.sqrt(len(differences))
    step_s = statistics.median(bare)
    return Row(
        "% CPU a token", 0.5, step / step_s * 100,
        note=f"{step * 1e6:.1f} µs of a step of {step_s * 1e3:.1f} ms, tiny model on torch, {REQUESTS} running; whole runs "
        f"differ by {statistics.median(differences):+.1%} ± {half:.1%} (95 %, {PAIRS} pairs)",
    )  # fmt: skip


def _telemetry_per_step(serving: ServingEngine) -> float:
    """CPU seconds of telling of one step: both writes of the ring, and the page's books, amortised."""
    telemetry, records = serving.telemetry, count(1)

    def tell() -> None:
        number = float(next(records))
        record = [number] * len(STEP_FIELDS)
        telemetry.step_begun(record)
        telemetry.step_ended(record)

    return by_turns(tell)[0]


class Silence:
    """Telemetry that says nothing."""

    def step_begun(self, record: list[float]) -> None:
        """Nothing."""

    def step_ended(self, record: list[float]) -> None:
        """Nothing."""

    def stage_changed(self, request: Request, stage: object, now: float) -> None:
        """Nothing."""

    def finished(self, request: Request) -> None:
        """Nothing."""


def _seconds_per_step(serving: ServingEngine, turn: int) -> float:
    engine = serving.engine
    for i in range(REQUESTS):
        prompt = [(turn * 31 + i * 7 + k) % 256 for k in range(PROMPT_TOKENS)]
        request = Request(f"{turn}-{i}", PROMPT_TOKENS, OUTPUT_TOKENS, engine.clock.now(), OUTPUT_TOKENS, prompt=prompt)
        request.sampling = GREEDY
        engine.add(request)
    gc.collect()
    begun, steps = time.process_time(), 0
    while engine.has_mail() or engine.scheduler.running or engine.scheduler.waiting:
        steps += engine.step()
    return (time.process_time() - begun) / steps
