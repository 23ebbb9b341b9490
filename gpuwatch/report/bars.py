"""Stage bars: one row a request on the shared time axis, so that one sees who waited while whom was served."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .chart import TimeFrame
from .data import RequestBar
from .words import duration, plain

STAGE_COLOURS: dict[str, str] = {"queue": "amber", "prefill": "blue", "decode": "green", "requeue": "purple"}
"""Colour of a stage; the others are neutral."""


class Block(msgspec.Struct, frozen=True):
    """One stage as drawn: percent of the axis, and its words for the pointer."""

    stage: str
    colour: str
    left: float
    width: float
    open: bool
    words: str


class BarRow(msgspec.Struct, frozen=True):
    """One request as drawn: `side` is where its words fit, after or before the bar."""

    id: str
    words: str
    blocks: tuple[Block, ...]
    side: str
    edge: float


def bar_rows(requests: Sequence[RequestBar], frame: TimeFrame) -> tuple[BarRow, ...]:
    """The rows in the order of arrival."""
    return tuple(_row(r, frame) for r in sorted(requests, key=lambda r: r.start))


def _row(request: RequestBar, frame: TimeFrame) -> BarRow:
    blocks = tuple(
        Block(
            s.stage,
            STAGE_COLOURS.get(s.stage, "calm"),
            round(frame.share(s.start) * 100, 2),
            round(max(frame.share(s.end) - frame.share(s.start), 0.0015) * 100, 2),
            s.open,
            f"{s.stage} {duration(s.end - s.start)}" + (", not ended" if s.open else ""),
        )
        for s in request.segments
    )
    end = frame.share(request.end) * 100
    after = end < 66
    return BarRow(
        request.id,
        request_words(request),
        blocks,
        "after" if after else "before",
        round(end if after else 100 - frame.share(request.start) * 100, 2),
    )


def request_words(request: RequestBar) -> str:
    """`first token after 41 s · 24,000 → 128 tokens`, with what is known."""
    first = "no first token" if request.ttft_s is None else f"first token after {duration(request.ttft_s)}"
    lengths = f"{plain(request.prompt_tokens)} → {plain(request.output_tokens)} tokens"
    ending = f" · {request.outcome}" if request.outcome in {"abort", "error", "rejected", "in flight"} else ""
    return f"{first} · {lengths}{ending}"
