"""How long after its onset each class is found, in virtual time; the scoreboard has the whole picture."""

from __future__ import annotations

import statistics
import tomllib
from functools import cache

from tests.bench.calls import SCENARIOS, calls
from tests.bench.row import Row

SEEDS = (1, 2, 3)
QUICK = ("engine_hang", "head_of_line_blocking")
RECURRENT = ("batch_thrashing",)


def quick() -> Row:
    """Classes that act within steps: from onset to detection."""
    return _row(QUICK, 5.0)


def recurrent() -> Row:
    """The founding case: from onset to detection; it needs three cycles."""
    return _row(RECURRENT, 75.0)


def _row(stems: tuple[str, ...], budget_s: float) -> Row:
    waits = {f"{stem}/{seed}": _wait_s(stem, seed) for stem in stems for seed in SEEDS}
    found = [wait for wait in waits.values() if wait is not None]
    missed = sorted(name for name, wait in waits.items() if wait is None)
    note = "; ".join(f"{name} {wait:.0f} s" for name, wait in waits.items() if wait is not None)
    note += f"; not found: {', '.join(missed)}" if missed else ""
    return Row("s", budget_s, statistics.median(found) if found else float("nan"), note=note)


@cache
def _wait_s(stem: str, seed: int) -> float | None:
    """Seconds from the onset that the scenario states to the incident's detection; None where it was not found."""
    from gpuwatch.config import Config
    from gpuwatch.pipeline import Pipeline
    from gpuwatch.quantize import quantized

    expect = tomllib.loads((SCENARIOS / f"{stem}.toml").read_text())["expect"]
    run = calls(stem, seed)
    pipeline = Pipeline(Config())
    for call in run:
        pipeline.step(*quantized(*call))
    onset = run[0][0] + expect.get("onset_s", 0)
    found = [i.detected_at - onset for i in pipeline.verdict().incidents if i.rule == stem]
    return min(found, default=None)
