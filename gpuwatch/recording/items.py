"""A batch as rows of 64-bit words in tables, and back: the layer between the domain types and the codec.

A `Table` is what does not change from poll to poll (kind, subject, source, names); its rows are what does. Doubles are
stored by their bits, hashes as they are, so nothing is lost: `batch_of(items_of(batch))` equals the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from ..model import Batch, Event, Frame, Histogram, Info, LiveRequests, OpenStep, Spans, Subject
from .columns import Words

_SPAN_COLUMNS = ("request", "stage", "start", "end", "prompt_tokens", "output_tokens", "cached_tokens", "outcome")
_REQUEST_COLUMNS = (
    "request", "arrived_at", "stage", "prompt_tokens", "max_tokens", "generated_tokens", "blocks", "preemptions",
)  # fmt: skip
_WIDTHS = {"batch": 3, "spans": 8, "requests_at": 1, "requests": 8, "open_step": 6, "event": 1, "info": 1}


class Table(msgspec.Struct, frozen=True, array_like=True):
    """What rows belong to. `kind` is batch, frame, histogram, spans, requests_at, requests, open_step, event or info.

    `texts` are signal names (frame), the error (batch; none or one), or keys and values in turn (event, info).
    """

    kind: str
    subject: Subject
    source: str = ""
    name: str = ""
    texts: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()

    @property
    def width(self) -> int:
        """Words in a row. KeyError for an unknown kind."""
        if self.kind == "frame":
            return 1 + len(self.texts)
        if self.kind == "histogram":
            return 3 + len(self.bounds)
        return _WIDTHS[self.kind]


Item = tuple[Table, Words]


def items_of(batch: Batch) -> Iterator[Item]:
    """The batch itself (first) and all that it brought, as rows in tables."""
    error = () if batch.error is None else (batch.error,)
    head = Table("batch", batch.subject, batch.source, batch.role, error)
    yield head, _row(batch.received_at, batch.took_s, batch.dropped)
    for frame in batch.frames:
        yield Table("frame", frame.subject, frame.source, "", frame.names), _frame_rows(frame)
    for h in batch.histograms:
        table = Table("histogram", h.subject, h.source, h.name, (), h.bounds)
        yield table, _row(h.at, h.sum, h.count, *h.cumulative)
    for spans in batch.spans:
        yield Table("spans", spans.subject, spans.source), _columns(spans, _SPAN_COLUMNS)
    for live in batch.requests:
        yield Table("requests_at", live.subject), _row(live.at)
        yield Table("requests", live.subject), _columns(live, _REQUEST_COLUMNS)
    for s in batch.open_steps:
        row = _row(s.at, s.begun_at, s.prefill_tokens, s.decode_tokens, s.running, s.waiting)
        yield Table("open_step", s.subject), row
    for event in batch.events:
        yield Table("event", event.subject, "", event.what, _flat(event.detail)), _row(event.at)
    for info in batch.info:
        yield Table("info", info.subject, "", "", _flat(info.labels)), _row(info.at)


def batch_of(items: Sequence[Item]) -> Batch:
    """The batch whose items these are; the first is its head. ValueError where they are not a batch."""
    if not items or items[0][0].kind != "batch":
        raise ValueError("a batch does not begin with its head")
    found: dict[str, list[object]] = {}
    stamps: list[float] = []
    for table, rows in items[1:]:
        if table.kind == "requests_at":
            stamps.append(_floats(rows)[0, 0].item())
            continue
        value = _requests(table, rows, stamps) if table.kind == "requests" else _READERS[table.kind](table, rows)
        found.setdefault(table.kind, []).append(value)
    head, row = items[0]
    received_at, took_s, dropped = _floats(row)[0].tolist()
    fields = {name: tuple(found[kind]) for kind, name in _FIELDS.items() if kind in found}
    return Batch(
        source=head.source, role=head.name, subject=head.subject, received_at=received_at, took_s=took_s,
        error=head.texts[0] if head.texts else None, dropped=int(dropped), **fields,  # type: ignore[arg-type]
    )  # fmt: skip


def _row(*values: float) -> Words:
    return np.array([values], dtype=np.float64).view(np.uint64)


def _frame_rows(frame: Frame) -> Words:
    rows = np.empty((len(frame.at), 1 + len(frame.names)))
    rows[:, 0] = frame.at
    rows[:, 1:] = frame.values
    return rows.view(np.uint64)


def _columns(item: Spans | LiveRequests, names: tuple[str, ...]) -> Words:
    """Columns side by side; the first holds hashes and keeps its bits, the rest are doubles."""
    rows = np.empty((len(item.request), len(names)), dtype=np.uint64)
    rows[:, 0] = item.request
    numbers = rows.view(np.float64)
    for j, name in enumerate(names[1:], 1):
        numbers[:, j] = getattr(item, name)
    return rows


def _flat(texts: dict[str, str]) -> tuple[str, ...]:
    return tuple(word for pair in texts.items() for word in pair)


def _paired(words: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(words[::2], words[1::2], strict=True))


def _floats(rows: Words) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.ascontiguousarray(rows).view(np.float64)


def _frame(table: Table, rows: Words) -> Frame:
    numbers = _floats(rows)
    return Frame(table.subject, table.source, table.texts, numbers[:, 0].copy(), numbers[:, 1:].copy())


def _histogram(table: Table, rows: Words) -> Histogram:
    at, total, count, *cumulative = _floats(rows)[0].tolist()
    return Histogram(table.subject, table.source, table.name, at, table.bounds, tuple(cumulative), total, count)


def _spans(table: Table, rows: Words) -> Spans:
    n = _floats(rows)
    return Spans(
        table.subject, table.source, rows[:, 0].copy(), n[:, 1].astype(np.uint8), n[:, 2].copy(), n[:, 3].copy(),
        n[:, 4].copy(), n[:, 5].copy(), n[:, 6].copy(), n[:, 7].astype(np.uint8),
    )  # fmt: skip


def _requests(table: Table, rows: Words, stamps: list[float]) -> LiveRequests:
    if not stamps:
        raise ValueError("a request table without its time")
    return LiveRequests(table.subject, stamps.pop(), rows[:, 0].copy(), *(c.copy() for c in _floats(rows).T[1:]))


def _open_step(table: Table, rows: Words) -> OpenStep:
    return OpenStep(table.subject, *_floats(rows)[0].tolist())


def _event(table: Table, rows: Words) -> Event:
    return Event(table.subject, _floats(rows)[0, 0].item(), table.name, _paired(table.texts))


def _info(table: Table, rows: Words) -> Info:
    return Info(table.subject, _floats(rows)[0, 0].item(), _paired(table.texts))


_READERS = {
    "frame": _frame, "histogram": _histogram, "spans": _spans, "open_step": _open_step, "event": _event, "info": _info,
}  # fmt: skip
_FIELDS = {
    "frame": "frames", "histogram": "histograms", "spans": "spans", "requests": "requests",
    "open_step": "open_steps", "event": "events", "info": "info",
}  # fmt: skip
