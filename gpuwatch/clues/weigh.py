"""Weighs the candidates: what explains what, which of those that compete for one picture is named, and when none is.

Of the clues about one engine or device that paint the same picture, the strongest is named and the others become its
alternatives; what it explains becomes its symptoms, in any picture. Below `SURE` the answer is `unknown` with the best two.
Two candidates as strong as each other, below certainty, are no answer either.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

import msgspec

from ..model import Alternative
from .clue import LEAST, SURE, Clue
from .moments import moments
from .sighting import Sighting

CLASSES = (
    "stale_telemetry",
    "gpu_hardware_fault",
    "devices",
    "engine_crash",
    "engine_gone",
    "start_failure",
    "engine_hang",
    "unadmitted",
    "unschedulable_request",
    "admission_deferred",
    "fleet",
    "host",
    "preemption_storm",
    "max_tokens_over_reservation",
    "head_of_line_blocking",
    "kv_pressure",
    "demand",
    "late_requests",
    "runaway_generation",
    "retry_storm",
    "prefill_decode_interference",
    "token_gaps",
    "quantization_fallback",
    "spec_decode_regression",
    "step_time",
    "prefix_cache",
)
"""The modules of classes/, in the order in which a person would ask."""
TIE = 0.06
CERTAIN = 0.55
AFTER_S = 60.0
"""What an engine says later than this before a fault of a device was not caused by it: clocks of logs differ a little."""
IN_TIME_REQUESTS = 10.0
SPEED_OF_SERVICE = frozenset({"queue", "speed", "service"})


class Weighed(NamedTuple):
    """A clue that is named (or `unknown`), what it explains, and what else it may be."""

    clue: Clue
    symptoms: tuple[Clue, ...]
    alternatives: tuple[Alternative, ...]


def candidates(s: Sighting) -> list[Clue]:
    """Every clue of every class, strong enough to be worth a word. A class that fails costs itself only: `s.failed`."""
    found: list[Clue] = []
    for name in CLASSES:
        try:
            found += import_module(f".classes.{name}", __package__).clues(s)
        except Exception as error:
            s.failed[name] = f"{type(error).__name__}: {error}"[:200]
    return [c for c in found if c.confidence >= LEAST and not _unfelt(s, c)]


def weighed(found: Sequence[Clue], s: Sighting) -> list[Weighed]:
    """One answer for each subject and picture; what another one explains is nested in it."""
    order = sorted(found, key=lambda c: (-c.confidence, _rank(c), c.rule, c.subject))
    causes = [c for c in order if c.confidence >= SURE]
    nested: dict[int, list[Clue]] = {}
    free: list[Clue] = []
    for clue in order:
        cause = next((c for c in causes if c is not clue and _explains(c, clue) and not _explained(c, causes)), None)
        if cause is None:
            free.append(clue)
        else:
            nested.setdefault(id(cause), []).append(clue)
    pictures: dict[tuple[str, str], list[Clue]] = {}
    for clue in free:
        pictures.setdefault((_place(clue), clue.picture), []).append(clue)
    return _one_unknown([_named(group, nested) for group in pictures.values()])


def _named(group: list[Clue], nested: dict[int, list[Clue]]) -> Weighed:
    best = group[0]
    others = {c.rule: c.confidence for c in reversed(group[1:]) if c.rule != best.rule}
    for one in best.instead:
        others.setdefault(one.rule, min(one.confidence, best.confidence))
    symptoms = tuple(nested.get(id(best), ()))
    if best.confidence < CERTAIN:  # too unsure of itself to explain others away
        others |= {c.rule: c.confidence for c in symptoms}
        symptoms = ()
    others.pop("healthy", None)
    rivals = tuple(Alternative(rule, sure) for rule, sure in sorted(others.items(), key=lambda p: (-p[1], p[0]))[:2])
    tied = bool(rivals) and best.confidence < CERTAIN and rivals[0].confidence > best.confidence - TIE
    rival_is_clue = bool(rivals) and any(c.rule == rivals[0].rule for c in group[1:])
    if best.severity == "info":
        return Weighed(best, symptoms, rivals)
    if best.confidence < SURE or (tied and rival_is_clue):
        pair = (Alternative(best.rule, best.confidence), *rivals)[:2]
        return Weighed(_unknown(best, pair), symptoms, pair)
    return Weighed(best, symptoms, rivals)


def _unknown(best: Clue, pair: tuple[Alternative, ...]) -> Clue:
    names = " or ".join(a.rule for a in pair)
    return msgspec.structs.replace(
        best,
        rule="unknown",
        mechanism="",
        confidence=best.confidence,
        named=False,
        explains=(),
        summary=f"The evidence does not decide on a mechanism; nearest: {names}. If {best.rule}: {best.summary}",
    )


def _one_unknown(found: list[Weighed]) -> list[Weighed]:
    """A riddle beside an answer for the same subject is no second incident."""
    answered = {_place(w.clue) for w in found if w.clue.rule != "unknown" and w.clue.severity != "info"}
    return [w for w in found if w.clue.rule != "unknown" or _place(w.clue) not in answered]


def _explains(cause: Clue, clue: Clue) -> bool:
    """Whether one is the symptom of the other: the same subject, or a device or message of the same recording."""
    if clue.rule not in cause.explains or cause.rule == clue.rule:
        return False
    says_so = cause.named and (not clue.named or cause.onset_at <= clue.onset_at)
    if cause.confidence < clue.confidence and not says_so:
        mutual = cause.rule in clue.explains
        return not mutual and not clue.named and cause.confidence >= CERTAIN and cause.subject == clue.subject
    near = cause.subject == clue.subject or not cause.subject.engine or not clue.subject.engine
    before = cause.rule == "gpu_hardware_fault" and cause.named and cause.onset_at <= clue.onset_at + AFTER_S
    return near or before or cause.picture == "fleet"


def _explained(cause: Clue, causes: Sequence[Clue]) -> bool:
    """Whether the cause is itself a symptom of another one: then the other one nests both."""
    return any(c is not cause and _explains(c, cause) and not _explains(cause, c) for c in causes)


def _place(clue: Clue) -> str:
    """The ranks of one engine share its picture."""
    return f"engine/{clue.subject.engine}" if clue.subject.engine else clue.subject.key


def _rank(clue: Clue) -> int:
    return CLASSES.index(clue.rule) if clue.rule in CLASSES else len(CLASSES)


def _unfelt(s: Sighting, clue: Clue) -> bool:
    """Requests were measured meanwhile and got their first token in time: a mechanism without harm."""
    if clue.named or clue.picture not in SPEED_OF_SERVICE or not clue.subject.engine or clue.severity != "ticket":
        return False
    seen = s.sight(clue.subject)
    first, last = seen.histograms.get("ttft_seconds", (None, None)) if seen is not None else (None, None)
    if first is None or last is None or last.count - first.count < IN_TIME_REQUESTS:
        return False
    mean = (last.sum - first.sum) / (last.count - first.count)
    still_waiting = moments(seen)[-1].waiting if seen is not None and seen.looks else 0.0
    return mean <= 0.5 * s.config.slo.ttft_p95_s and not still_waiting >= last.count - first.count
