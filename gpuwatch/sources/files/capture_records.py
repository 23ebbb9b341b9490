"""The records of a capture (docs/capture.md, version 1): their shapes, and the pieces of a Batch that they become.

A shape refuses wrong types; keys that it does not know are counted by the reader. Pages and exports are read as the
live sources read them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from ...model import OUTCOMES, STAGES, Floats, Frame, Spans, Subject

VERSION = 1

Numbers = list[float | None]


class Header(msgspec.Struct, frozen=True):
    """The first line. `t` is the stream's beginning, unix seconds; `engine` the default subject of its records."""

    gpuwatch_capture: int
    t: float
    engine: str = "engine"
    producer: str = ""
    clock: Literal["virtual", "real"] = "virtual"
    meta: dict[str, str | float | int | bool | None] = {}


class Record(msgspec.Struct):
    """What every record says: when it was received, from what, and about whom."""

    t: float
    src: str
    engine: str | None = None
    rank: int | None = None


class StepsRecord(Record):
    """Completed steps, and the one that runs."""

    cols: dict[str, Numbers] = {}
    open: dict[str, float | None] | None = None


class RequestsRecord(Record):
    """The live request table."""

    cols: dict[str, list[int | float | str | None]] = {}


class SpanColumns(msgspec.Struct):
    """Columns of a spans record."""

    request: list[str]
    stage: list[str]
    start: Numbers
    end: Numbers
    prompt_tokens: Numbers | None = None
    output_tokens: Numbers | None = None
    cached_tokens: Numbers | None = None
    outcome: list[str | None] | None = None


class SpansRecord(Record, kw_only=True):
    """Finished stage spans."""

    cols: SpanColumns


class PageRecord(Record):
    """An exposition page as received."""

    role: Literal["engine", "gpu"] = "engine"
    body: str = ""
    took_s: float | None = None


class OtlpRecord(Record):
    """An ExportTraceServiceRequest, base64."""

    body: bytes = b""


class ReadingsSubject(msgspec.Struct):
    """Exactly one of the two."""

    gpu: str = ""
    host: str = ""


class ReadingsRecord(Record, kw_only=True):
    """Device or host readings under catalogue names."""

    subject: ReadingsSubject
    at: list[float]
    cols: dict[str, Numbers] = {}


class InfoRecord(Record):
    """What the engine says of itself."""

    labels: dict[str, str] = {}


class EventRecord(Record):
    """Something that happened."""

    what: str = ""
    detail: dict[str, Any] = {}


class ErrorRecord(Record):
    """A poll that failed."""

    role: str = "engine"
    error: str = ""


class EndRecord(Record):
    """The stream is complete."""


SHAPES: dict[str, type[Record]] = {
    "steps": StepsRecord, "requests": RequestsRecord, "spans": SpansRecord, "page": PageRecord, "otlp": OtlpRecord,
    "readings": ReadingsRecord, "info": InfoRecord, "event": EventRecord, "error": ErrorRecord, "end": EndRecord,
}  # fmt: skip
"""Shape by `src`."""


class UnevenError(ValueError):
    """Columns of a block differ in length."""


def float_columns(cols: Mapping[str, Sequence[Any]]) -> dict[str, Floats]:
    """Columns as arrays, null as NaN. UnevenError where their lengths differ."""
    if not cols:
        return {}
    lengths = {len(values) for values in cols.values()}
    if len(lengths) > 1:
        raise UnevenError(f"columns of {min(lengths)} to {max(lengths)} values")
    block = np.array(list(cols.values()), np.float64)
    return dict(zip(cols, block, strict=True))


def request_hashes(values: Sequence[int | float | str | None]) -> np.typing.NDArray[np.uint64]:
    """Hashes as uint64: whole numbers or hex strings. ValueError or OverflowError for anything else."""
    numbers = [int(value, 16) if isinstance(value, str) else value for value in values]
    if any(type(number) is not int for number in numbers):
        raise ValueError("a request hash is a whole number or a hex string")
    return np.array(numbers, np.uint64)


def spans_of(subject: Subject, source: str, cols: SpanColumns) -> tuple[Spans, int]:
    """Spans, and how many rows were dropped for an unknown stage. UnevenError, or ValueError for a bad hash."""
    count = len(cols.request)
    unknown: Numbers = [None] * count
    numbers = float_columns({
        "start": cols.start, "end": cols.end,
        "prompt": unknown if cols.prompt_tokens is None else cols.prompt_tokens,
        "output": unknown if cols.output_tokens is None else cols.output_tokens,
        "cached": unknown if cols.cached_tokens is None else cols.cached_tokens,
    })  # fmt: skip
    outcomes = [""] * count if cols.outcome is None else cols.outcome
    if not count == len(cols.stage) == len(outcomes) == len(numbers["start"]):
        raise UnevenError("columns of different lengths")
    stages = np.array([_STAGE.get(stage, -1) for stage in cols.stage])
    good = (stages >= 0) & ~np.isnan(numbers["start"]) & ~np.isnan(numbers["end"])
    columns: tuple[Any, ...] = (
        request_hashes(cols.request), stages.astype(np.uint8), *numbers.values(),
        np.array([_OUTCOME.get(outcome or "", 0) for outcome in outcomes], np.uint8),
    )  # fmt: skip
    if good.all():
        return Spans(subject, source, *columns), 0
    return Spans(subject, source, *(column[good] for column in columns)), int((~good).sum())


def readings_frame(record: ReadingsRecord, known: frozenset[str]) -> tuple[Frame, int]:
    """A frame of the signals that the catalogue knows, and how many it does not. UnevenError for uneven columns."""
    cols = float_columns({"": record.at, **record.cols})
    at = cols.pop("")
    names = tuple(name for name in cols if name in known)
    values = np.stack([cols[name] for name in names], axis=1) if names else np.empty((len(at), 0))
    subject = Subject(gpu=record.subject.gpu, host="" if record.subject.gpu else record.subject.host)
    return Frame(subject, "readings", names, at, values), len(cols) - len(names)


_STAGE = {name: index for index, name in enumerate(STAGES)}
_OUTCOME = {name: index for index, name in enumerate(OUTCOMES)}
