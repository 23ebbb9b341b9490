"""A pool of replicas as one answer: each one's verdict counted by class, who differs from the others, who is missing.

A replica differs where a figure of it lies beyond three robust deviations of the others of the same model, and beyond
twice or below half of their median. It is missing where its target was down (`up` 0) or its series ended before the span did.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from ...model import Batch, Blind, Verdict
from ..judgement import Judged

MAX_SUBJECTS = 256
_GAUGES = {"req_running": 2.0, "req_waiting": 2.0, "kv_usage_ratio": 0.15}
_RATES = {"generated_tokens_total": 10.0, "req_finished_total": 0.1}
"""Figures that are compared, and the least difference that means anything, in their unit (rates: per second)."""
_SPREAD = 3 * 1.4826


class Member(msgspec.Struct, frozen=True):
    """One replica: what was judged of it, its figures, and when it was seen and not (unix seconds)."""

    name: str
    model: str
    judged: Judged
    figures: dict[str, float]
    since: float
    until: float
    down_s: float = 0.0
    down_at: float = math.nan


def figures(items: Iterable[tuple[float, Batch]]) -> dict[str, float]:
    """Mean of each gauge and rate of each counter over what was seen, all ranks added up (ratios: the largest)."""
    gauges: dict[tuple[str, int], list[float]] = {}
    counters: dict[tuple[str, int], tuple[float, float, float]] = {}  # last value, growth, first time
    last_at = 0.0
    for at, batch in items:
        for frame in batch.frames:
            if frame.subject.engine and frame.source == "page":
                last_at = at
                for name, value in zip(frame.names, frame.values[-1].tolist(), strict=True):
                    key = (name, frame.subject.rank)
                    if name in _GAUGES and value == value:
                        gauges.setdefault(key, []).append(value)
                    elif name in _RATES and value == value:
                        old, growth, first = counters.get(key, (value, 0.0, at))
                        counters[key] = (value, growth + (value - old if value >= old else value), first)
    out: dict[str, float] = {}
    for (name, _), values in gauges.items():
        mean = statistics.fmean(values)
        out[name] = max(out.get(name, 0.0), mean) if name.endswith("_ratio") else out.get(name, 0.0) + mean
    for (name, _), (_, growth, first) in counters.items():
        if last_at > first:
            out[name] = out.get(name, 0.0) + growth / (last_at - first)
    return out


def merged(members: Sequence[Member]) -> Judged:
    """One verdict: all incidents, the state of the replica in worst shape, blind rules and sources of all, bounded."""
    rank = {"page": 0, "ticket": 1, "info": 2}
    incidents = [i for m in members for i in m.judged.verdict.incidents]
    incidents.sort(key=lambda i: (rank[i.severity], i.onset_at, i.rule, str(i.subject.get("engine"))))
    worst = incidents[0].subject.get("engine") if incidents else members[0].name
    state = next((m.judged.verdict.state for m in members if m.name == worst), None)
    blind = _distinct([b for m in members for b in m.judged.verdict.blind])
    sources = tuple(s for m in members for s in m.judged.verdict.sources)[: 4 * MAX_SUBJECTS]
    cannot = tuple(dict.fromkeys(line for m in members for line in m.judged.cannot_tell))
    most = _distinct([b for m in members for b in m.judged.blind])
    verdict = Verdict(1, tuple(incidents), state, tuple(blind)[:1000], sources)
    return Judged(verdict, cannot, tuple(most), sum(m.judged.seconds for m in members))


def report(members: Sequence[Member], down: Sequence[str], until: float, cadence: float) -> list[str]:
    """Lines on the pool: by class, who differs, who is missing."""
    lines = [f"{len(members)} replicas"]
    lines += _by_class(members)
    lines += [f"differs: {line}" for line in _differing(members)]
    lines += [f"missing: {line}" for line in (*down, *_missing(members, until, cadence))]
    return lines


def _by_class(members: Sequence[Member]) -> list[str]:
    """`overload on 38 of 40: a, b …`, worst severity first; and how many have nothing."""
    by_rule: dict[tuple[str, str], list[str]] = {}
    for member in members:
        for incident in member.judged.verdict.incidents:
            names = by_rule.setdefault((incident.severity, incident.rule), [])
            if member.name not in names:
                names.append(member.name)
    order = {"page": 0, "ticket": 1, "info": 2}
    lines = []
    for (severity, rule), names in sorted(by_rule.items(), key=lambda c: (order[c[0][0]], -len(c[1]), c[0][1])):
        lines.append(f"{severity} {rule} on {len(names)} of {len(members)}: {_names(names)}")
    fine = [m.name for m in members if not m.judged.verdict.incidents]
    if fine and len(fine) < len(members):
        lines.append(f"no incident on {len(fine)}: {_names(fine)}")
    return lines


def _differing(members: Sequence[Member]) -> list[str]:
    """Each replica that differs from the others of its model, with the figures in which it does."""
    found: dict[str, list[str]] = {}
    for model in sorted({m.model for m in members}):
        same = [m for m in members if m.model == model]
        for figure, least in ({**_GAUGES, **_RATES}).items():
            values = {m.name: m.figures[figure] for m in same if figure in m.figures}
            if len(values) < 3:
                continue
            usual = statistics.median(values.values())
            spread = _SPREAD * statistics.median(abs(v - usual) for v in values.values())
            for name, value in values.items():
                apart = abs(value - usual)
                if apart > max(spread, least) and (value > 2 * usual or value < usual / 2):
                    unit = "/s" if figure in _RATES else ""
                    label = figure.removesuffix("_total") if unit else figure
                    found.setdefault(name, []).append(f"{label} {value:.3g}{unit} (others {usual:.3g})")
    return [f"{name}: {', '.join(said)}" for name, said in sorted(found.items(), key=lambda f: -len(f[1]))[:20]]


def _missing(members: Sequence[Member], until: float, cadence: float) -> list[str]:
    """Replicas that were down for a time, and those whose series ended early."""
    slack_s = max(60.0, 4 * cadence if cadence == cadence else 60.0)
    lines = []
    for member in members:
        if member.down_s > 0:
            lines.append(f"{member.name}: down for {member.down_s:.0f} s, first at {_clock(member.down_at)}")
        elif member.until < until - slack_s:
            lines.append(f"{member.name}: its series end at {_clock(member.until)}")
    return lines[:40]


def _distinct(blind: Iterable[Blind]) -> list[Blind]:
    """One of each rule and reason; forty replicas that lack the same are one line."""
    seen: dict[tuple[str, tuple[str, ...]], Blind] = {}
    for one in blind:
        seen.setdefault((one.rule, one.missing), one)
    return list(seen.values())


def _names(names: Sequence[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S UTC") if at == at else "an unknown time"
