"""Stage bars: one row a request on a common time axis, so that one sees who waited while whom was served."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .chart import TimeFrame
from .data import RequestBar
from .words import duration, plain

STAGE_COLOURS: dict[str, str] = {"queue": "amber", "prefill": "blue", "decode": "green", "requeue": "purple"}
"""Colour of a stage; the others are neutral."""

STAGE_WORDS: dict[str, str] = {"request": "in no stage of the engine"}
"""What a stage is called where its name would not be understood."""


class Block(msgspec.Struct, frozen=True):
    """One stage as drawn: percent of the axis, and its words for the pointer."""

    stage: str
    colour: str
    left: float
    width: float
    open: bool
    words: str


class BarRow(msgspec.Struct, frozen=True):
    """One request as drawn, and its numbers in words."""

    id: str
    words: str
    blocks: tuple[Block, ...]


def bar_frame(requests: Sequence[RequestBar]) -> TimeFrame:
    """The time axis of the bars: from the first arrival to the last end, with a little air."""
    first, last = min(r.start for r in requests), max(r.end for r in requests)
    air_s = max((last - first) * 0.02, 0.1)
    return TimeFrame(first - air_s, last + air_s)


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
            f"{STAGE_WORDS.get(s.stage, s.stage)} {duration(s.end - s.start)}" + (", not ended" if s.open else ""),
        )
        for s in request.segments
    )
    return BarRow(request.id, request_words(request), blocks)


def request_words(request: RequestBar) -> str:
    """`first token after 41 s · 24,000 → 128 tokens`, with what is known."""
    first = "no first token yet" if request.ttft_s is None else f"first token after {duration(request.ttft_s)}"
    answer = "" if request.outcome == "in flight" else f" → {plain(request.output_tokens)}"
    lengths = f"{plain(request.prompt_tokens)}{answer} tokens"
    ending = f" · {request.outcome}" if request.outcome in {"abort", "error", "rejected", "in flight"} else ""
    return f"{first} · {lengths}{ending}"
