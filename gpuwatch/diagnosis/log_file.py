"""A log of any engine among the sources: read by gpuwatch.sources.logs, and laid beside the pages where its clock has
another zone.

Logs say no time zone, or a container's. Where a log and the pages of the same incident do not overlap, and a shift by
whole quarters of an hour brings them together, that is the zone; it is said.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from ..model import Batch
from .content import Content
from .material import Material, MaterialError

_QUARTER_S = 900.0
_FURTHEST_S = 14.5 * 3600.0
_SLACK_S = 120.0


def read_log_file(content: Content, material: Material, engine: str, *, needed: bool) -> bool:
    """Add a log; False where nothing in it is known (MaterialError if it is `needed`)."""
    from ..sources.logs import read_log

    since, until = material.span
    hint = since if since == since else content.modified_at()
    read = read_log(content.lines(), engine, hint if hint == hint else None)
    items = [(at, batch) for at, batches in read.calls for batch in batches]
    if not items and not read.engine_kind:
        if needed:
            raise MaterialError(
                f"{content.name}: nothing in it is known: no stats line and no message of an engine, no page, no capture"
            )
        return False
    shift_s = _zone_shift_s([at for at, _ in items], since, until)
    if shift_s:
        items = [(at + shift_s, shifted(batch, shift_s)) for at, batch in items]
        material.note(f"{content.name}: its clock is {shift_s / 3600:+g} h from the pages': another time zone; shifted")
    material.items += items
    kind = f"log of {read.engine_kind}" if read.engine_kind else "log of an unknown engine"
    material.saw(content.name, kind, [at for at, _ in items])
    for note in read.notes:
        material.note(f"{content.name}: {note}")
    if content.cut:
        material.note(f"{content.name}: the file breaks off")
    return True


def _zone_shift_s(times: list[float], since: float, until: float) -> float:
    """Seconds to add so that the log lies beside what spans `since` to `until`; 0 where it does, or where none fits."""
    if not times or since != since:
        return 0.0
    first, last = min(times), max(times)
    if first <= until + _SLACK_S and last >= since - _SLACK_S:
        return 0.0
    shift_s = round(((since + until) / 2 - (first + last) / 2) / _QUARTER_S) * _QUARTER_S
    candidates = (shift_s, shift_s - _QUARTER_S, shift_s + _QUARTER_S)
    fitting = [s for s in candidates if first + s <= until + _SLACK_S and last + s >= since - _SLACK_S]
    if not fitting or abs(shift_s) > _FURTHEST_S:
        return 0.0
    whole_hours = [s for s in fitting if s % 3600 == 0]
    return min(whole_hours or fitting, key=lambda s: (s % 1800 != 0, abs(s - shift_s)))


def shifted(batch: Batch, by_s: float) -> Batch:
    """The batch as if everything in it had happened `by_s` later."""
    changes: dict[str, Any] = {
        "received_at": batch.received_at + by_s,
        "frames": tuple(msgspec.structs.replace(f, at=np.asarray(f.at) + by_s) for f in batch.frames),
        "histograms": tuple(msgspec.structs.replace(h, at=h.at + by_s) for h in batch.histograms),
        "spans": tuple(msgspec.structs.replace(s, start=s.start + by_s, end=s.end + by_s) for s in batch.spans),
        "events": tuple(msgspec.structs.replace(e, at=e.at + by_s) for e in batch.events),
        "info": tuple(msgspec.structs.replace(i, at=i.at + by_s) for i in batch.info),
    }
    return msgspec.structs.replace(batch, **changes)


def overlap(a: tuple[float, float], b: tuple[float, float]) -> bool:
    """Whether two spans of time share more than a moment."""
    return not any(map(math.isnan, (*a, *b))) and min(a[1], b[1]) - max(a[0], b[0]) > 1.0
