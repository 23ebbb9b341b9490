"""The verdict as JSON (schema 1) and as one screen of text."""

from __future__ import annotations

import math
import textwrap
from datetime import UTC, datetime
from typing import Any

import msgspec

from ..model import Evidence, Incident, Verdict

DIGITS = 6
_MARK = {"page": "PAGE", "ticket": "TICKET", "info": "INFO"}


def to_json(verdict: Verdict) -> bytes:
    """One JSON object; floats to 6 significant digits, times to milliseconds, what is not known as null."""
    return msgspec.json.encode(_rounded(msgspec.to_builtins(verdict)))


NOTHING = "No incident."


def text(verdict: Verdict, width: int = 100, *, dated: bool = True, nothing: str = NOTHING) -> str:
    """The verdict on one screen: what, since when, why, what not, what to do.

    `dated`: False without times. `nothing`: what to say where there is no incident.
    """
    out: list[str] = []
    for incident in verdict.incidents[:3]:
        out += [*_incident(incident, width, dated=dated), ""]
    if not verdict.incidents:
        out += [nothing, ""]
    elif len(verdict.incidents) > 3:
        out += [f"… and {len(verdict.incidents) - 3} more; see the JSON.", ""]
    if verdict.state is not None:
        out += _wrapped("state", verdict.state.line, width)
    if verdict.blind:
        lacks = "; ".join(f"{b.rule} ({b.missing[0]})" for b in verdict.blind[:6])
        out += _wrapped("blind", lacks, width)
    return "\n".join(map(_printable, out)).rstrip() + "\n"


def _incident(i: Incident, width: int, *, dated: bool) -> list[str]:
    since = f"{_clock(i.onset_at)}, seen after {i.detected_at - i.onset_at:.0f} s"
    until = f", over at {_clock(i.resolved_at)}" if i.resolved_at else ""
    when = f"since {since}{until}" if dated else "when is not known: nothing that was given has a time"
    out = [
        f"{_MARK[i.severity]}  {i.rule}" + (f" ({i.mechanism})" if i.mechanism else "") + f"  {i.confidence:.0%} sure",
        f"      {i.subject['engine'] or i.subject.get('gpu', '')} · {when}",
        "",
    ]
    out += _wrapped("what", i.summary, width)
    if any(known is not None for known in (i.impact.good_ratio, *i.impact.ttft_p95_s, i.impact.late_requests)):
        out += _wrapped("impact", _impact(i), width)
    if i.trigger:
        told = ", ".join(_evidence(e) for e in i.trigger.evidence)
        out += _wrapped("trigger", f"{i.trigger.kind} at {_clock(i.trigger.at)}: {told}", width)
    for n, e in enumerate(i.evidence[:8]):
        out += _wrapped("evidence" if n == 0 else "", _evidence(e), width)
    for n, c in enumerate(i.culprits[:3]):
        out += _wrapped("who" if n == 0 else "", f"{c.kind} {c.id}: {c.share:.0%} · {c.detail}", width)
    for n, r in enumerate(i.ruled_out[:5]):
        out += _wrapped("not" if n == 0 else "", f"{r.rule}: {r.because}", width)
    if i.symptoms:
        out += _wrapped("with it", ", ".join(s.rule for s in i.symptoms), width)
    if i.alternatives:
        out += _wrapped("or", ", ".join(f"{a.rule} ({a.confidence:.0%})" for a in i.alternatives), width)
    for n, a in enumerate(i.advice[:2]):
        knob = f" [{a.knob}]" if a.knob else ""
        out += _wrapped("do" if n == 0 else "", f"{a.do}{knob} ({a.applies}, {a.takes_s:.0f} s)", width)
    for n, no in enumerate(i.not_now[:2]):
        out += _wrapped("do not" if n == 0 else "", no.removeprefix("Do not ").rstrip("."), width)
    return out


def _impact(i: Incident) -> str:
    p = i.impact
    parts = [p.objective]
    if p.good_ratio is not None:
        was = f", was {p.before_ratio:.0%}" if p.before_ratio is not None else ""
        parts.append(f"{p.good_ratio:.0%} of requests in time{was}")
    before, now = p.ttft_p95_s
    if now is not None:
        parts.append(
            f"TTFT P95 {_number(before)} → {_number(now)} s" if before is not None else f"TTFT P95 {_number(now)} s"
        )
    if p.late_requests:
        parts.append(f"{p.late_requests:.0f} requests late")
    return " · ".join(parts)


def _evidence(e: Evidence) -> str:
    limit = f" ({e.op} {_number(e.limit)})" if e.limit is not None else ""
    return f"{e.signal} {_number(e.observed)}{limit}"


def _number(v: float | str | None) -> str:
    if v is None:
        return "unknown"
    if isinstance(v, str):
        return v
    return f"{v:.3g}" if abs(v) < 1e5 else f"{v:.0f}"


def _wrapped(label: str, words: str, width: int) -> list[str]:
    return textwrap.wrap(
        _printable(words), width, initial_indent=f"{label:>9}  ", subsequent_indent=" " * 11, break_long_words=True
    )


def _printable(words: str) -> str:
    """Engine-supplied strings may hold escape codes: a terminal gets none of them."""
    return "".join(c if c.isprintable() else "�" for c in words)


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def _rounded(v: Any, key: str = "") -> Any:
    if isinstance(v, float):
        if not math.isfinite(v):
            return None
        if key.endswith("_at") or key == "at":
            return round(v, 3)
        return float(f"{v:.{DIGITS}g}")
    if isinstance(v, dict):
        return {k: _rounded(x, k) for k, x in v.items()}
    if isinstance(v, list | tuple):
        return [_rounded(x, key) for x in v]
    return v
