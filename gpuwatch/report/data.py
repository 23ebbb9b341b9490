"""What a report is made of: a verdict, 1 Hz series, the state of each second, transitions and slow requests.

Plain frozen data: a report can be written from it without the record that it came from. Times are unix seconds.
"""

from __future__ import annotations

import msgspec

from ..model import EngineState, Floats, Incident, Transition, Verdict


class Series(msgspec.Struct, frozen=True, eq=False):
    """One signal of the subject over time, in its base unit; NaN where nothing was known. `at` ascends."""

    signal: str
    label: str
    unit: str
    source: str
    at: Floats
    values: Floats


class Gap(msgspec.Struct, frozen=True):
    """A plot that is not there: which, and why."""

    label: str
    why: str


class Segment(msgspec.Struct, frozen=True):
    """One stage of one request. `open` when it had not ended at the end of the record."""

    stage: str
    start: float
    end: float
    open: bool = False


class RequestBar(msgspec.Struct, frozen=True):
    """One request as its stages. `id` is a salted hash; token counts and TTFT are None where nothing said them."""

    id: str
    start: float
    end: float
    ttft_s: float | None
    prompt_tokens: float | None
    output_tokens: float | None
    outcome: str
    segments: tuple[Segment, ...]


class ReportData(msgspec.Struct, frozen=True, eq=False):
    """Everything a postmortem shows. `incident` is the one that it is about; None for a healthy record.

    `meta` is what the record says of itself (producer, scenario, device, clock): shown, never judged. `cut` counts
    what bounds removed from the record before it got here, by name.
    """

    verdict: Verdict
    incident: Incident | None
    from_at: float
    until_at: float
    engine: str
    model: str
    ttft_p95_slo_s: float
    series: dict[str, Series]
    gaps: tuple[Gap, ...]
    states: tuple[EngineState, ...]
    transitions: tuple[Transition, ...]
    requests: tuple[RequestBar, ...]
    capsule: str
    meta: dict[str, str] = {}
    cut: dict[str, int] = {}
    ticks: int = 0
