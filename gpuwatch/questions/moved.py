"""Question 5: what moved first: arrival rate, request shape, cost per request, capacity, or a change?

The same facts give an incident its trigger: what moved, when and by how much, no later than the onset.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..memory.view import Window
from ..model import Change, Event, Evidence, Missing, MovedState, Trigger
from ..stats import rate_change
from .demand import SPAN_S, arrivals, long_tokens, surge, surge_at

SHIFT_SPAN_S = 600.0
LONG_TOKENS_SHARE = 0.25
"""Long requests matter when they bring at least a quarter of the prompt tokens."""
MEAN_RATIO = 1.5
DECODE = 3.0
FEW = 5
CHANGES = ("restart", "version", "arguments", "change")
CHANGE_BEFORE_S = 600.0
ONE_RESTART_S = 60.0
"""The page, the ring, the process and the log each tell of one restart, some while the engine loads."""


class LengthShift(NamedTuple):
    """Lengths before and after `at`: of `what` (prompts or outputs), their means, and for prompts the share of long ones.

    Long begins at `long_tokens`, 8 × the median; the shares are NaN where single requests are not seen.
    """

    at: float
    what: str
    long_tokens: float
    before_share: float
    after_share: float
    mean_before_tokens: float
    mean_after_tokens: float


def length_shift(w: Window) -> LengthShift | None:
    """A change of the length mix in the last ten minutes: of prompts (single requests, else counters), or of outputs."""
    try:
        shift = _from_requests(w)
    except Missing:
        shift = _from_mean(w, "prompts", "prompt_tokens_mean", w.maybe(prompt_tokens_mean))
    return shift or _from_mean(w, "outputs", "output_tokens_mean", w.maybe(output_tokens_mean))


def length_shift_by(w: Window, latest: float) -> LengthShift | None:
    """The same, no later than `latest` (unix seconds): what set something off came before it.

    Few long requests come, and in bunches: the likeliest change of ten minutes may be a later bunch, or a calm may hide
    the first one. Then what had come by `latest` must show a change by itself.
    """
    shift = w.maybe(length_shift)
    if shift is not None and shift.at <= latest:
        return shift
    try:
        return _from_requests(w, latest)
    except Missing:
        return None


def _from_requests(w: Window, latest: float = math.inf) -> LengthShift | None:
    limit = w.once(long_tokens)
    since = max(w.now - SHIFT_SPAN_S, w.history.first_seen_at)
    until = min(w.now, latest)
    times, lengths = w.history.arrivals.window(since, until)
    n = math.ceil(until - since)
    if n < 1:
        return None
    second = np.minimum((times - since).astype(int), n - 1)
    long = lengths >= limit
    if long.sum() < 3:
        return None
    counts = np.bincount(second[long], minlength=n).astype(float)
    found = rate_change(counts, min_cells=5, min_before=15)
    if found is None or found.llr < 3 or found.after < 3 * found.before:
        return None
    before, after = second < found.cell, second >= found.cell
    if before.sum() < 10 or after.sum() < 5:
        return None
    tokens_after = float(lengths[after].sum())
    if float(lengths[after & long].sum()) < LONG_TOKENS_SHARE * tokens_after:
        return None
    # The queue hides young arrivals from the live table: the engine's own count, where it has one, is the denominator.
    arrived = max(float(after.sum()), _arrived_since(w, since + found.cell, until))
    return LengthShift(
        since + found.cell,
        "prompts",
        limit,
        float(long[before].mean()),
        float(long[after].sum() / arrived),
        float(lengths[before].mean()),
        tokens_after / float(after.sum()),
    )


def _arrived_since(w: Window, at: float, until: float) -> float:
    try:
        counts = arrivals(w, min(900.0, max(2.0, math.ceil(w.now - at))))
    except Missing:
        return 0.0
    later = max(0, math.floor(w.now - until))
    return float(np.nansum(counts[: len(counts) - later]))


def _from_mean(w: Window, what: str, figure: str, now_tokens: float | None) -> LengthShift | None:
    usual = w.baseline.usual(figure, before=w.now - 60)
    if usual is None or now_tokens is None or now_tokens < MEAN_RATIO * usual:
        return None
    at = next((t for t, v in w.baseline.recent(figure) if v >= MEAN_RATIO * usual), w.now)
    return LengthShift(at - 10, what, math.nan, math.nan, math.nan, usual, now_tokens)


def output_tokens_mean(w: Window) -> float:
    """Mean output length over the last minute: of the finished, or of those in decode where they are longer already."""
    seen = []
    try:
        done = w.finished(SPAN_S)["output_tokens"]
        seen += [float(np.nanmean(done))] if len(done) and not np.isnan(done).all() else []
    except Missing:
        seen += [w.observed_mean("output_tokens", SPAN_S)]
    try:
        live = w.live
        decoding = live.generated_tokens[(live.stage == DECODE) & (live.generated_tokens > 0)]
        seen += [float(decoding.mean())] if len(decoding) >= FEW else []
    except Missing:
        pass  # no live table: a longer answer is known when it ends
    if not seen:
        raise Missing("output_tokens", "no request of known output length")
    return max(seen)


def prompt_tokens_mean(w: Window) -> float:
    """Mean prompt tokens per request over the last minute: Δprompt tokens ÷ Δarrivals."""
    tokens = w.rate("prompt_tokens_total", SPAN_S)
    requests = float(np.nanmean(arrivals(w, SPAN_S)))
    if requests <= 0:
        raise Missing("req_arrived_total", "no arrivals")
    return tokens / requests


def changes(w: Window, until: float | None = None) -> list[Event]:
    """Restarts, new versions, arguments and announced changes in the ten minutes before `until` (default now).

    A new driver is a change of the engine's devices. A restart that several sources tell of is one.
    """
    end = w.now if until is None else until
    told = [
        event
        for history in (w.history, *w.gpus)
        for event in history.events
        if event.what in CHANGES and end - CHANGE_BEFORE_S <= event.at <= min(end + 15, w.now)
    ]
    found: list[Event] = []
    restarted_at = -math.inf
    for event in sorted(told, key=lambda e: e.at):
        if event.what == "restart":
            if event.at - restarted_at < ONE_RESTART_S:
                continue
            restarted_at = event.at
        found.append(event)
    return found


def in_words(event: Event) -> str:
    """What has changed: as announced, or each thing with what it was and is."""
    detail = event.detail
    said = detail.get("what", "") or ", ".join(f"{key} {value}" for key, value in detail.items() if "→" in value)
    return f"{event.what}: {said}".rstrip(": ")


def trigger(w: Window, onset_at: float) -> Trigger | None:
    """What set off a mechanism that began at `onset_at`: the arrival rate, the request shape, a change, or nothing."""
    rise, rise_at = w.maybe(surge), w.maybe(surge_at)
    if rise is not None and rise_at is not None and rise_at <= onset_at + 15:
        return Trigger(
            "traffic_surge",
            min(rise_at, onset_at),
            (w.evidence("arrival_rate_per_second", rise.after, rise.before, "was", 300),),
        )
    shift = length_shift_by(w, onset_at + 15)
    if shift is not None:
        return Trigger("length_shift", min(shift.at, onset_at), _shift_evidence(w, shift))
    blamed = [e for e in changes(w, onset_at) if e.at <= onset_at + 5]
    if blamed:
        last = blamed[-1]
        what = last.detail.get("what") or last.detail.get("how") or in_words(last).partition(": ")[2]
        return Trigger("change", last.at, (Evidence(last.what, what[:120] or None, None, "", 0, "changes"),))
    return None


def _shift_evidence(w: Window, shift: LengthShift) -> tuple[Evidence, ...]:
    rows = [
        w.evidence(f"{shift.what[:-1]}_tokens_mean", shift.mean_after_tokens, shift.mean_before_tokens, "was", SPAN_S)
    ]
    if not math.isnan(shift.after_share):
        name = f"prompts ≥ {_tokens(shift.long_tokens)}"
        rows.insert(0, w.evidence(name, shift.after_share, shift.before_share, "was", SPAN_S))
    return tuple(rows)


def listed_changes(w: Window, onset_at: float, blamed_at: float | None) -> tuple[Change, ...]:
    """The changes near the onset, for the verdict."""
    return tuple(Change(in_words(e)[:200], e.at, blamed_at == e.at) for e in changes(w, onset_at))


def moved(w: Window) -> MovedState:
    """The answer for the state line."""
    rise = w.maybe(surge)
    if rise is not None:
        at = w.maybe(surge_at)
        return MovedState("arrivals", f"{rise.before:.2g} → {rise.after:.2g} requests/s", at)
    shift = w.maybe(length_shift)
    if shift is not None:
        if math.isnan(shift.after_share):
            by = f"mean {shift.what[:-1]} {_tokens(shift.mean_before_tokens)} → {_tokens(shift.mean_after_tokens)} tokens"
        else:
            by = f"prompts ≥ {_tokens(shift.long_tokens)} {shift.before_share:.1%} → {shift.after_share:.1%}"
        return MovedState("shape", by, shift.at)
    recent = changes(w)
    if recent:
        return MovedState("change", in_words(recent[-1]).replace(": ", " ", 1)[:120], recent[-1].at)
    if w.age_of_history() < 60:
        return MovedState("unknown")
    return MovedState("nothing")


def _tokens(n: float) -> str:
    return f"{n / 1000:.3g}k" if n >= 1000 else f"{n:.0f}"
