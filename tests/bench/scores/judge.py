"""Whether a verdict is right: exactly one top-level incident of the expected class in its time, or none for a control."""

from __future__ import annotations

import math

from tests.bench.scores.case import expectation
from tests.bench.scores.play import Run

ONSET_TOLERANCE_S = 20.0
IRREVERSIBLE = ("restart", "drain_replica", "cordon_node")
ENGINE_DOWN = ("engine_hang", "engine_crash", "start_failure", "memory_fragmentation", "cold_start")
CURED_LATE_RATIO = 0.3
HARMLESS_LATE_RATIO = 0.05


def expected_of(run: Run) -> str:
    """The class that a good verdict on this run names: none where the cure was applied."""
    return "none" if run.case.cured else str(expectation(run.case.stem)["class"])


def is_class_right(run: Run) -> bool:
    """Exactly one incident, of the expected class; none at all for a control."""
    expected = expected_of(run)
    return [s.rule for s in run.seen] == ([] if expected == "none" else [expected])


def deviations(run: Run) -> tuple[str, ...]:
    """Everything in which the verdict differs from the scenario's [expect]; empty where it is right."""
    expected = expected_of(run)
    out = []
    if not is_class_right(run):
        out.append(f"{' + '.join(s.rule for s in run.seen) or 'none'} instead of {expected}")
    mine = [s for s in run.seen if s.rule == expected]
    if not mine:
        return tuple(out)
    found, expect = mine[0], expectation(run.case.stem)
    if "trigger" in expect and found.trigger != expect["trigger"]:
        out.append(f"trigger {found.trigger} instead of {expect['trigger']}")
    low, high = expect["between_s"]
    if not low <= found.detected_s <= high:
        out.append(f"found at {found.detected_s:.0f} s instead of {low:.0f}–{high:.0f} s")
    low, high = _onset_between(run)
    if not low <= found.onset_s <= high:
        out.append(f"onset at {found.onset_s:.0f} s instead of {low:.0f}–{high:.0f} s")
    extra = sorted(set(found.symptoms) - set(expect.get("symptoms", ())))
    if extra:
        out.append(f"symptom {', '.join(extra)} is not allowed")
    return tuple(out)


def _onset_between(run: Run) -> tuple[float, float]:
    """Not before the demand changed, and not after the mechanism could be told; both with a tolerance."""
    stated = expectation(run.case.stem).get("onset_s", math.nan)
    known = (run.truth.onset_s, run.truth.shown_s) if run.truth else ()
    ends = [at for at in (stated, *known) if not math.isnan(at)] or [-math.inf, math.inf]
    return min(ends) - ONSET_TOLERANCE_S, max(ends) + ONSET_TOLERANCE_S


def is_harmful(run: Run) -> bool:
    """A restart, drain or cordon is advised where the class asks for nothing of the kind."""
    if expected_of(run) in ENGINE_DOWN:
        return False
    return any(s.action in IRREVERSIBLE for s in run.seen)


def detection_s(run: Run) -> float | None:
    """Seconds from when the mechanism can be told to its detection; None where it was not named, or did not show."""
    mine = [s for s in run.seen if s.rule == expected_of(run)]
    if not mine or run.truth is None or math.isnan(run.truth.shown_s):
        return None
    return mine[0].detected_s - run.truth.shown_s


def did_not_happen(run: Run) -> bool:
    """A variant in which nobody is harmed, and nothing is said: the incident itself did not come about."""
    return not run.seen and run.truth is not None and run.truth.late_ratio < HARMLESS_LATE_RATIO


def is_label_sound(plain: Run, cured: Run) -> tuple[bool, bool]:
    """(the cure works, the label is unique): lateness falls by 70 % and the class is gone; no other page stays."""
    assert plain.truth is not None
    assert cured.truth is not None
    gone = expected_of(plain) not in [s.rule for s in cured.seen]
    fell = cured.truth.late <= CURED_LATE_RATIO * plain.truth.late
    return gone and fell, not any(s.severity == "page" for s in cured.seen)
