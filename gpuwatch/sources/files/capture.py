"""Reads a capture (docs/capture.md): a recorded or simulated world, as batches in the order in which they were received.

Incremental: a line is read when its batch is wanted, so that a pipe from a running simulation works. What is not a
capture, or has a malformed line, is a CaptureError that names the line; a stream that stops before its `end` record is
`complete = False` and everything up to there counts.
"""

from __future__ import annotations

import gzip
import math
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from ...catalog import CATALOG
from ...model import Batch, Event, Info, Subject
from ..facts import canonical_facts, number
from ..gpu.dcgm import DcgmPage
from ..page.engine_page import EnginePage
from ..ring.step_columns import live_requests, open_step, step_frame
from ..spans.decoder import SpanDecoder
from ..spans.inbox import complete
from ..spans.trees import SpanTrees
from .capture_records import (
    SHAPES,
    VERSION,
    EndRecord,
    ErrorRecord,
    EventRecord,
    Header,
    InfoRecord,
    OtlpRecord,
    PageRecord,
    ReadingsRecord,
    Record,
    RequestsRecord,
    SpansRecord,
    StepsRecord,
    UnevenError,
    float_columns,
    readings_frame,
    request_hashes,
    spans_of,
)

MAX_LINE_BYTES = 64 * 1024 * 1024
MAX_GAP_S = 86_400.0
_KNOWN = frozenset(CATALOG)
_SALT = b"capture"  # the same capture gives the same hashes, and so the same verdict


class CaptureError(ValueError):
    """Not a capture, or a capture with an unreadable line. The message names the source and the line."""


class Capture:
    """An open capture: its header, then an iterator of (received_at, Batch).

    `complete` turns True with the `end` record, `unknown` counts records and keys that were skipped, `dropped` blocks,
    rows and series that could not be used.
    """

    def __init__(self, lines: Iterable[bytes], name: str = "capture") -> None:
        self.name = name
        self.complete = False
        self.dropped = 0
        self.unknown: Counter[str] = Counter()
        self._lines = enumerate(lines, start=1)
        self._pages: dict[str, EnginePage] = {}
        self._gpus = DcgmPage()
        self._block_tokens: dict[Subject, float] = {}
        self._decoders: dict[Subject, tuple[SpanDecoder, SpanTrees]] = {}
        self.header = self._read_header()
        self._t = self.header.t

    def __iter__(self) -> Iterator[tuple[float, Batch]]:
        for at, line in self._read_lines():
            record = self._record(at, line)
            if record is None:
                continue
            if isinstance(record, EndRecord):
                self.complete = True
                self._t = record.t
                return
            try:
                batch = self._batch(record)
            except UnevenError:
                self.dropped += 1
                continue
            except (ValueError, TypeError, OverflowError) as error:
                raise CaptureError(f"{self.name}: line {at}: {record.src}: {error}") from None
            self.dropped += batch.dropped
            yield record.t, batch

    @property
    def t(self) -> float:
        """Unix seconds of the last record read."""
        return self._t

    def _read_header(self) -> Header:
        for at, line in self._read_lines():
            try:
                header = msgspec.json.decode(line, type=Header)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise CaptureError(f"{self.name}: line {at}: not a capture: {error}") from None
            if header.gpuwatch_capture != VERSION:
                found = header.gpuwatch_capture
                raise CaptureError(f"{self.name}: line {at}: capture version {found}; version {VERSION} is read")
            if not math.isfinite(header.t):
                raise CaptureError(f"{self.name}: line {at}: t is no time")
            return header
        raise CaptureError(f"{self.name}: empty: not a capture")

    def _read_lines(self) -> Iterator[tuple[int, bytes]]:
        """Lines with their numbers; a compressed stream that breaks off ends here, without `end`."""
        try:
            for at, line in self._lines:
                if len(line) > MAX_LINE_BYTES:
                    raise CaptureError(f"{self.name}: line {at}: longer than {MAX_LINE_BYTES} bytes")
                if line.strip():
                    yield at, line
        except EOFError:
            return
        except (gzip.BadGzipFile, zlib.error) as error:
            raise CaptureError(f"{self.name}: not gzip: {error}") from None

    def _record(self, at: int, line: bytes) -> Record | None:
        """The record of a line; None for one that is skipped, or for a last line that was cut."""
        try:
            raw = msgspec.json.decode(line)
            src = raw["src"] if isinstance(raw, dict) else None
            shape = SHAPES.get(src) if isinstance(src, str) else None
            if src is None:
                raise ValueError("no src")
            if shape is None:
                self.unknown[f"src {str(src)[:40]}"] += 1
                self._advance(at, float(raw["t"]))
                return None
            record = msgspec.convert(raw, shape)
        except (msgspec.DecodeError, ValueError, KeyError, TypeError, RecursionError) as error:
            if not line.endswith(b"\n"):
                return None  # cut in the middle of a line
            raise CaptureError(f"{self.name}: line {at}: {error}") from None
        for key in raw.keys() - set(shape.__struct_fields__):
            self.unknown[f"key {src}.{str(key)[:40]}"] += 1
        self._advance(at, record.t)
        return record

    def _advance(self, at: int, t: float) -> None:
        if not self._t - 1e-6 <= t <= self._t + MAX_GAP_S:
            raise CaptureError(f"{self.name}: line {at}: t={t} after {self._t}: out of order, or a gap of over a day")
        self._t = max(self._t, t)

    def _batch(self, record: Record) -> Batch:
        engine = record.engine if record.engine is not None else self.header.engine
        return _READERS[record.src](self, record, Subject(engine=engine, rank=record.rank or 0))

    def _steps(self, record: StepsRecord, subject: Subject) -> Batch:
        columns = float_columns(record.cols)
        frame = step_frame(subject, columns, self._block_tokens.get(subject, math.nan)) if columns else None
        fields = {k: math.nan if v is None else v for k, v in (record.open or {}).items()}
        step = open_step(subject, record.t, fields) if fields else None
        return Batch(
            _named("steps", subject), "steps", subject, record.t,
            frames=(frame,) if frame else (), open_steps=(step,) if step else (),
        )  # fmt: skip

    def _requests(self, record: RequestsRecord, subject: Subject) -> Batch:
        cols = dict(record.cols)
        hashes = request_hashes(cols.pop("id", []))
        columns = float_columns(cols)
        if any(len(column) != len(hashes) for column in columns.values()):
            raise UnevenError("columns of different lengths")
        table = live_requests(subject, record.t, hashes, columns)
        return Batch(_named("requests", subject), "capture", subject, record.t, requests=(table,))

    def _spans(self, record: SpansRecord, subject: Subject) -> Batch:
        spans, dropped = spans_of(subject, "spans", record.cols)
        return Batch(_named("spans", subject), "spans", subject, record.t, spans=(spans,), dropped=dropped)

    def _page(self, record: PageRecord, subject: Subject) -> Batch:
        body, took_s = record.body.encode(), record.took_s or 0.0
        if record.role == "gpu":
            gpus = self._gpus.read(body, record.t)
            return Batch(
                "dcgm", "gpu", Subject(host=subject.engine), record.t, took_s,
                frames=gpus.frames, events=gpus.events, info=gpus.info, dropped=gpus.dropped,
            )  # fmt: skip
        page = self._pages.setdefault(subject.engine, EnginePage(subject.engine))
        try:
            report = page.read(body, record.t)
        except ValueError as error:
            return Batch(_named("page", subject), "engine", subject, record.t, took_s, str(error)[:300])
        return Batch(
            _named("page", subject), "engine", subject, record.t, took_s,
            frames=report.frames, histograms=report.histograms, events=report.events, info=report.info,
            dropped=report.dropped,
        )  # fmt: skip

    def _otlp(self, record: OtlpRecord, subject: Subject) -> Batch:
        if subject not in self._decoders:
            self._decoders[subject] = SpanDecoder(lambda _: subject, _SALT), SpanTrees()
        decoder, trees = self._decoders[subject]
        decoded = decoder.decode(record.body, "application/x-protobuf")
        spans = (*decoded.spans, *complete(trees, decoded.waiting, decoded.told, record.t))
        return Batch(_named("spans", subject), "spans", subject, record.t, spans=spans, dropped=decoded.dropped)

    def _readings(self, record: ReadingsRecord, subject: Subject) -> Batch:
        frame, unknown = readings_frame(record, _KNOWN)
        role = "gpu" if frame.subject.gpu else "host"
        frames = (frame,) if frame.names else ()
        return Batch("readings", role, frame.subject, record.t, frames=frames, dropped=unknown)

    def _info(self, record: InfoRecord, subject: Subject) -> Batch:
        facts, cut = canonical_facts(record.labels)
        self._block_tokens[subject] = number(facts.get("kv_block_tokens", ""))
        info = Info(subject, record.t, facts)
        return Batch(_named("info", subject), "capture", subject, record.t, info=(info,), dropped=cut)

    def _event(self, record: EventRecord, subject: Subject) -> Batch:
        detail = {str(k)[:64]: str(v)[:256] for k, v in list(record.detail.items())[:16]}
        event = Event(subject, record.t, record.what, detail)
        return Batch(_named("events", subject), "changes", subject, record.t, events=(event,))

    def _error(self, record: ErrorRecord, subject: Subject) -> Batch:
        name = {"engine": "page", "gpu": "dcgm"}.get(record.role, record.role)
        return Batch(_named(name, subject), record.role[:40], subject, record.t, error=record.error[:300] or "failed")


_READERS: dict[str, Callable[[Capture, Any, Subject], Batch]] = {
    "steps": Capture._steps, "requests": Capture._requests, "spans": Capture._spans, "page": Capture._page,
    "otlp": Capture._otlp, "readings": Capture._readings, "info": Capture._info, "event": Capture._event,
    "error": Capture._error,
}  # fmt: skip


def read_capture(lines: Iterable[bytes], name: str = "capture") -> Capture:
    """Open a capture: the header is read at once. CaptureError naming `name` and the line."""
    return Capture(lines, name)


def calls(capture: Capture, grid_s: float = 1.0) -> Iterator[tuple[float, list[Batch]]]:
    """The pipeline's calls: (header.t + k × grid, what had been received by then), to the last record and gap-free."""
    start, step = capture.header.t, 0
    batches: list[Batch] = []
    for t, batch in capture:
        while t > start + step * grid_s + 1e-6:
            yield start + step * grid_s, batches
            batches = []
            step += 1
        batches.append(batch)
    last = max(step, math.ceil((capture.t - start) / grid_s - 1e-6))
    while step <= last:
        yield start + step * grid_s, batches
        batches = []
        step += 1


def capture_lines(path: str) -> Iterator[bytes]:
    """Lines of a capture file, plain or gzip; `-` is stdin. CaptureError where it cannot be opened or read."""
    try:
        if path == "-":
            yield from _lines(sys.stdin.buffer)
            return
        with Path(path).open("rb") as file:
            yield from _lines(file)
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise
        raise CaptureError(f"{path}: {error.strerror or error}") from error


def _lines(stream: Any) -> Iterator[bytes]:
    """Lines of a buffered binary stream; one that is too long comes cut, and is refused by its length."""
    if stream.peek(2)[:2] == b"\x1f\x8b":
        stream = cast("BinaryIO", gzip.GzipFile(fileobj=stream))
    while line := stream.readline(MAX_LINE_BYTES + 1):
        yield line


def _named(kind: str, subject: Subject) -> str:
    return f"{kind}:{subject.engine}/{subject.rank}" if subject.rank else f"{kind}:{subject.engine}"
