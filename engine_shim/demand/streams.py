"""Streams of requests: a scenario's [[load]] tables, checked. Times are seconds from the scenario's start."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ..request import PRIORITY_CLASSES
from .impatience import Retry
from .lengths import LengthError, Lengths, Recorded, parse_lengths
from .tables import LoadTable, ScenarioError
from .trace import Replay, TraceError, find_trace, read_trace


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream of requests. Lengths may be shares of the pool; one of rate_per_s, rho, concurrency, replay is set."""

    name: str
    arrivals: str
    from_s: float
    until_s: float
    prompt: Lengths
    output: Lengths
    rate_per_s: float | None = None
    rho: float | None = None
    concurrency: int = 0
    think_s: float = 0.0
    replay: Replay | None = None
    cv: float = 1.0
    period_s: float = 0.0
    swing_ratio: float = 0.0
    max_tokens: int | None = None
    shared_prefix_tokens: int = 0
    tenant: str = ""
    priority: int = 0  # index into PRIORITY_CLASSES
    deadline_s: float = math.inf  # from arrival to the first token, as the clients want it
    abort_after_s: float = math.inf  # from arrival on; then the client hangs up, whatever it has got
    retry: Retry | None = None
    draft_acceptance: float = math.nan  # of speculation, for these requests; NaN: the engine's setting
    kept: float = 1.0  # share of the stream's requests that is played (a cure's load_scale)


def read_stream(row: LoadTable, index: int, duration_s: float, file: str) -> Stream:
    """A checked stream. Raises ScenarioError."""
    key = f"load[{index}]"
    until_s = duration_s if row.until_s is None else row.until_s
    _check_demand(row, key, file, duration_s)
    if not 0 <= row.from_s < until_s:
        raise ScenarioError(file, f"{key}.until_s", f"must lie after from_s: {row.from_s:g} to {until_s:g}")
    if row.shared_prefix_tokens < 0:
        raise ScenarioError(file, f"{key}.shared_prefix_tokens", "must not be negative")
    if row.max_tokens is not None and row.max_tokens < 1:
        raise ScenarioError(file, f"{key}.max_tokens", f"must be at least 1, got {row.max_tokens}")
    replay = _replay(row, key, file)  # first: a trace that cannot be read is named under its own key
    return Stream(
        name=row.name or f"load{index}",
        arrivals=row.arrivals,
        from_s=row.from_s,
        until_s=min(until_s, duration_s),
        prompt=_lengths(row, "prompt_tokens", key, file),
        output=_lengths(row, "output_tokens", key, file),
        rate_per_s=row.rate_per_s,
        rho=row.rho,
        concurrency=row.concurrency or 0,
        think_s=row.think_s,
        replay=replay,
        cv=1.0 if row.cv is None else row.cv,
        period_s=row.period_s or 0.0,
        swing_ratio=row.swing_ratio or 0.0,
        max_tokens=row.max_tokens,
        shared_prefix_tokens=row.shared_prefix_tokens,
        tenant=row.tenant,
        priority=PRIORITY_CLASSES.index(row.priority),
        deadline_s=math.inf if row.deadline_s is None else row.deadline_s,
        abort_after_s=math.inf if row.abort_after_s is None else row.abort_after_s,
        retry=_retry(row, key, file),
        draft_acceptance=math.nan if row.draft_acceptance is None else row.draft_acceptance,
    )


def check_names(streams: tuple[Stream, ...], file: str) -> None:
    """Names are seeds: two streams of one name would send the same requests."""
    seen: set[str] = set()
    for index, stream in enumerate(streams):
        if stream.name in seen:
            raise ScenarioError(file, f"load[{index}].name", f"there are two streams called {stream.name!r}")
        seen.add(stream.name)


_NEEDS = {"gamma": ("cv",), "diurnal": ("period_s", "swing_ratio"), "closed": ("concurrency",), "trace": ("trace",)}


def _check_demand(row: LoadTable, key: str, file: str, duration_s: float) -> None:
    """What each kind of arrivals needs, and that nothing is given that it would ignore."""
    for kind, names in _NEEDS.items():
        for name in names:
            if kind == row.arrivals and getattr(row, name) is None:
                raise ScenarioError(file, f"{key}.{name}", f"arrivals = {kind!r} needs it")
            if kind != row.arrivals and getattr(row, name) is not None:
                raise ScenarioError(file, f"{key}.{name}", f"has no meaning with arrivals = {row.arrivals!r}")
    given = [name for name in ("rate_per_s", "rho") if getattr(row, name) is not None]
    if row.arrivals == "closed" and given:
        raise ScenarioError(file, f"{key}.{given[0]}", "a closed loop has no rate of its own")
    if row.arrivals == "trace" and given:
        raise ScenarioError(file, f"{key}.{given[0]}", "a trace has its own arrival times; `speed` scales them")
    if row.arrivals not in ("closed", "trace") and len(given) != 1:
        raise ScenarioError(file, f"{key}.rate_per_s", "exactly one of rate_per_s and rho is needed")
    limits = {
        "rate_per_s": 1e5,
        "rho": 100.0,
        "cv": 50.0,
        "period_s": 1e7,
        "concurrency": 1e5,
        "speed": 1e4,
        "deadline_s": 86_400.0,
        "abort_after_s": 86_400.0,
    }
    for name, high in limits.items():
        value = getattr(row, name)
        if value is not None and not 0 < value <= high:
            raise ScenarioError(file, f"{key}.{name}", f"must be above 0 and at most {high:g}, got {value:g}")
    if row.draft_acceptance is not None and not 0 <= row.draft_acceptance <= 1:
        raise ScenarioError(file, f"{key}.draft_acceptance", f"must be between 0 and 1, got {row.draft_acceptance:g}")
    if row.swing_ratio is not None and not 0 <= row.swing_ratio <= 1:
        raise ScenarioError(file, f"{key}.swing_ratio", f"must be between 0 and 1, got {row.swing_ratio:g}")
    if row.think_s < 0 or (row.think_s and row.arrivals != "closed"):
        raise ScenarioError(file, f"{key}.think_s", "is the pause of a closed loop's clients, and not negative")


def _retry(row: LoadTable, key: str, file: str) -> Retry | None:
    if row.retry is None:
        return None
    retry = row.retry
    if row.arrivals == "closed":
        raise ScenarioError(file, f"{key}.retry", "a closed loop's clients back off and go on by themselves")
    if not 0 < retry.timeout_s <= 86_400 or not 0 <= retry.backoff_s <= 86_400:
        raise ScenarioError(
            file, f"{key}.retry", "timeout_s must be above 0, backoff_s not negative, both at most a day"
        )
    if not 1 <= retry.attempts <= 100:
        raise ScenarioError(file, f"{key}.retry.attempts", f"must be between 1 and 100, got {retry.attempts}")
    return Retry(retry.timeout_s, retry.attempts, retry.backoff_s)


def _replay(row: LoadTable, key: str, file: str) -> Replay | None:
    if row.arrivals != "trace":
        for name in ("trace_from_s", "speed"):
            if getattr(row, name) is not None:
                raise ScenarioError(file, f"{key}.{name}", f"has no meaning with arrivals = {row.arrivals!r}")
        return None
    try:
        trace = read_trace(find_trace(row.trace or "", Path(file).parent))
    except TraceError as error:
        raise ScenarioError(file, f"{key}.trace", str(error)) from None
    from_s, last_s = row.trace_from_s or 0.0, float(trace.at_s[-1])
    if not 0 <= from_s <= last_s:
        raise ScenarioError(file, f"{key}.trace_from_s", f"must lie within the trace's {last_s:g} s, got {from_s:g}")
    own = (row.prompt_tokens is not None, row.output_tokens is not None)
    return Replay(trace, from_s, row.speed or 1.0, *own)


def _lengths(row: LoadTable, name: str, key: str, file: str) -> Lengths:
    value = getattr(row, name)
    recorded = partial(_recorded, column=name, folder=Path(file).parent)
    if value is None and row.arrivals == "trace":
        value = {"trace": row.trace}
    if value is None:
        raise ScenarioError(file, f"{key}.{name}", "is missing")
    try:
        return parse_lengths(value, recorded)
    except LengthError as e:
        raise ScenarioError(file, f"{key}.{name}.{e.key}" if e.key else f"{key}.{name}", e.message) from None


def _recorded(name: str, column: str, folder: Path) -> Recorded:
    """Prompt or output lengths of a trace, as a distribution."""
    try:
        return Recorded(np.sort(getattr(read_trace(find_trace(name, folder)), column)))
    except TraceError as error:
        raise LengthError("trace", str(error)) from None
