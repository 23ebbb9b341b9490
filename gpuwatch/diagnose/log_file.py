"""A log of any engine among the sources: read by gpuwatch.sources.logs, and laid beside the pages where its clock has
another zone.

Logs say no time zone, or a container's. Where a log and the pages of the same incident do not overlap, and a shift by
whole quarters of an hour brings them together, that is the zone; it is said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..model import Batch, Info, Subject
from .content import Content
from .material import Found, Material, MaterialError

if TYPE_CHECKING:
    from ..sources.logs import LogRead

_LOOKED_FOR = (
    "Looked for: stats lines and messages of vLLM, SGLang, TensorRT-LLM, TGI, LMDeploy, llama.cpp and ollama, XIDs and OOM "
    "kills of the kernel, pages of an engine, dcgm-exporter or cAdvisor, nvidia-smi's output, spans, captures. Give the "
    "engine's own log around the incident (its stats lines are at level INFO), or: "
    "curl -s http://ENGINE/metrics | gpuwatch diagnose -"
)
_QUARTER_S = 900.0
_FURTHEST_S = 14.5 * 3600.0
_SLACK_S = 120.0
_DAY_S = 86_400.0
_YEAR_S = 365.25 * _DAY_S


def read_log_file(content: Content, material: Material, engine: str, *, needed: bool) -> bool:
    """Add a log; False where nothing in it is known (MaterialError if it is `needed`)."""
    since, until = material.span
    read = _read(content, engine, since)
    if not read.calls and not read.engine_kind:
        if needed:
            raise MaterialError(f"{content.name}: nothing in it is known ({read.lines} lines). {_LOOKED_FOR}")
        return False
    items = [(at, batch) for at, batches in read.calls for batch in batches]
    if items and read.engine_kind:
        at, first = items[0]
        info = Info(Subject(engine=engine), at, {"engine_kind": read.engine_kind})
        items[0] = (at, msgspec.structs.replace(first, info=(*first.info, info)))
    shift_s = _zone_shift_s([read.first_at, read.last_at], since, until) if read.timed else 0.0
    if shift_s:
        items = [(at + shift_s, shifted(batch, shift_s)) for at, batch in items]
        material.note(
            f"{content.name}: its clock is {-shift_s / 3600:+g} h from the other sources': taken as a time zone"
        )
    material.items += items
    kind = f"log of {read.engine_kind}" if read.engine_kind else "log of an unknown engine"
    times = (read.first_at + shift_s, read.last_at + shift_s) if read.timed else (math.nan, math.nan)
    material.found.append(Found(content.name, f"{kind}, {read.read} of {read.lines} lines say something", 1, *times))
    for note in read.notes:
        material.note(f"{content.name}: {note}")
    for what, count in read.dropped.items():
        material.note(f"{content.name}: {count} {what} were cut")
    if content.cut:
        material.note(f"{content.name}: the file breaks off")
    return True


def _read(content: Content, engine: str, since: float) -> LogRead:
    """The log; dates without a year lie near the other sources, or else not after the file was written."""
    from ..sources.logs import read_log

    written_at = content.modified_at()
    hint = since if since == since else written_at
    read = read_log(content.lines(), engine, hint if hint == hint else None)
    if since != since and not content.is_stdin and read.timed and read.last_at > written_at + _DAY_S:
        read = read_log(content.lines(), engine, read.first_at - _YEAR_S)
    return read


def _zone_shift_s(times: Sequence[float], since: float, until: float) -> float:
    """Seconds to add so that the log lies beside what spans `since` to `until`; 0 where it does, or where none fits."""
    first, last = times
    if since != since or first != first:
        return 0.0
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
