"""What full telemetry costs the engine: CPU seconds for each token with and without it, in interleaved pairs."""

from __future__ import annotations

import gc
import math
import statistics
import tempfile
import time
from pathlib import Path

from engine_shim.request import Request
from engine_shim.sampling import GREEDY
from engine_shim.serving import ServeOptions, ServingEngine, build
from tests.bench.row import Row

PAIRS, REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 20, 16, 64, 32


def lost() -> Row:
    """Ring and page of a real torch engine against an engine without a ring whose page nobody books."""
    differences, bare_us = [], []
    with tempfile.TemporaryDirectory() as folder:
        told = build(ServeOptions(ring=True, ring_dir=Path(folder)), {"max_num_seqs": REQUESTS})
        silent = build(ServeOptions(), {"max_num_seqs": REQUESTS})
        silent.engine.telemetry = Silence()
        for turn in range(PAIRS + 2):
            order = (told, silent) if turn % 2 else (silent, told)
            cost = {id(engine): _seconds_per_token(engine, turn) for engine in order}
            if turn >= 2:  # the first turns warm caches up
                bare = cost[id(silent)]
                differences.append(cost[id(told)] / bare - 1)
                bare_us.append(bare * 1e6)
        told.telemetry.close()
        silent.telemetry.close()
    half = 1.96 * statistics.stdev(differences) / math.sqrt(len(differences))
    mean = statistics.median(differences)
    return Row("% CPU a token", 0.5, max(0.0, mean) * 100,
        note=f"{mean:+.2%} ± {half:.2%} (95 %) over {PAIRS} pairs; tiny model on torch, {statistics.median(bare_us):.0f} µs a "
        "token: a real model's steps are far longer, its loss smaller",
    )  # fmt: skip


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


def _seconds_per_token(serving: ServingEngine, turn: int) -> float:
    engine = serving.engine
    for i in range(REQUESTS):
        prompt = [(turn * 31 + i * 7 + k) % 256 for k in range(PROMPT_TOKENS)]
        request = Request(f"{turn}-{i}", PROMPT_TOKENS, OUTPUT_TOKENS, engine.clock.now(), OUTPUT_TOKENS, prompt=prompt)
        request.sampling = GREEDY
        engine.add(request)
    gc.collect()
    begun = time.process_time()
    while engine.has_mail() or engine.scheduler.running or engine.scheduler.waiting:
        engine.step()
    return (time.process_time() - begun) / (REQUESTS * OUTPUT_TOKENS)
