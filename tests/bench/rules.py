"""All rules on one engine for one second, and a whole second of the pipeline."""

from __future__ import annotations

import time

from tests.bench.calls import calls
from tests.bench.row import Row

SCENARIO = "batch_thrashing"


def whole_second() -> Row:
    """Ingest, windows, questions, rules and incidents of one engine and its GPU for one simulated second."""
    from gpuwatch.config import Config
    from gpuwatch.pipeline import Pipeline
    from gpuwatch.recording.quantize import quantized

    run = [quantized(*call) for call in calls(SCENARIO)]
    best = min(_run(Pipeline(Config()), run) for _ in range(3))
    return Row("ms", 5.0, best / len(run) * 1e3,
        note=f"all rules and everything before them, with the ring's steps and spans, mean over {SCENARIO}",
    )  # fmt: skip


def _run(pipeline: object, run: list[object]) -> float:
    begun = time.process_time()
    for call in run:
        pipeline.step(*call)  # type: ignore[attr-defined, misc]
    return time.process_time() - begun
