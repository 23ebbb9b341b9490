"""How long after its onset each class is found, in virtual time; the scoreboard has the whole picture."""

from __future__ import annotations

import math
import statistics
import tomllib
from functools import cache

from tests.bench.calls import SCENARIOS, calls
from tests.bench.row import Row

SEEDS = (1, 2, 3)
QUICK = ("engine_hang", "head_of_line_blocking")
RECURRENT = "batch_thrashing"


def quick() -> Row:
    """Classes that act within steps: from the scenario's onset to detection."""
    found = {f"{stem}/{seed}": _found(stem, seed) for stem in QUICK for seed in SEEDS}
    waits = {name: wait_s for name, (wait_s, _, _) in found.items()}
    return _row(waits, 5.0, waits)


def recurrent() -> Row:
    """The founding case: from its first full swing to detection, which needs three cycles."""
    found = {f"{RECURRENT}/{seed}": _found(RECURRENT, seed) for seed in SEEDS}
    waits = {name: swing_s for name, (_, swing_s, _) in found.items()}
    periods = [period_s for _, _, period_s in found.values() if not math.isnan(period_s)]
    budget_s = max(20.0, 3 * statistics.median(periods)) if periods else 20.0
    return _row(waits, budget_s, {name: wait_s for name, (wait_s, _, _) in found.items()})


def _row(waits: dict[str, float], budget_s: float, since_onset: dict[str, float]) -> Row:
    found = [wait for wait in waits.values() if not math.isnan(wait)]
    missed = sorted(name for name, wait in waits.items() if math.isnan(wait))
    note = "since the scenario's onset: "
    note += ", ".join(f"{name} {wait:.0f} s" for name, wait in since_onset.items() if not math.isnan(wait))
    note += f"; not found: {', '.join(missed)}" if missed else ""
    return Row("s", budget_s, statistics.median(found) if found else math.nan, note=note)


@cache
def _found(stem: str, seed: int) -> tuple[float, float, float]:
    """Seconds from the scenario's onset and from the incident's own to its detection, and the period of its cycles.

    NaN where it was not found, or has no cycles.
    """
    from gpuwatch.config import Config
    from gpuwatch.pipeline import Pipeline
    from gpuwatch.recording.quantize import quantized

    expect = tomllib.loads((SCENARIOS / f"{stem}.toml").read_text())["expect"]
    run = calls(stem, seed)
    pipeline = Pipeline(Config())
    for call in run:
        pipeline.step(*quantized(*call))
    found = [incident for incident in pipeline.verdict().incidents if incident.rule == stem]
    if not found:
        return math.nan, math.nan, math.nan
    first = min(found, key=lambda incident: incident.detected_at)
    periods = [e.observed for e in first.evidence if "period, median" in e.signal and e.observed is not None]
    onset = run[0][0] + expect.get("onset_s", 0)
    return first.detected_at - onset, first.detected_at - first.onset_at, periods[0] if periods else math.nan
