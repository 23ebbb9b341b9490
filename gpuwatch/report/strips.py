"""The five questions over time: one coloured strip each, as spans of equal answers.

A strip has at most 240 columns, whatever the length of the record: a column shows the answer that held longest in it.
The colour is a CSS class out of a fixed table; the words stand in the strip and in a legend, so colour is never alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from ..model import EngineState
from .chart import TimeFrame

COLUMNS = 240

_ANSWERS: tuple[tuple[str, Callable[[EngineState], str]], ...] = (
    ("GPU", lambda s: s.gpu.mode),
    ("Rhythm", lambda s: s.rhythm.kind),
    ("Queue", lambda s: s.queue.trend),
    ("TTFT goes to", lambda s: s.latency.stage or "unknown"),
    ("Moved first", lambda s: s.moved.what),
    ("Lifecycle", lambda s: s.lifecycle),
)

COLOURS: dict[str, str] = {
    "compute-bound": "blue", "bandwidth-bound": "sky", "mixed": "green", "throttled": "red", "idle": "calm",
    "steady": "calm", "recurrent": "red", "periodic": "purple",
    "empty": "calm", "draining": "green", "standing": "amber", "growing": "red",
    "queue": "amber", "front": "sky", "prefill": "blue", "decode": "green", "requeue": "purple", "waiting": "amber",
    "nothing": "calm", "arrivals": "amber", "shape": "blue", "cost": "purple", "capacity": "red", "change": "sky",
    "serving": "calm", "loading": "sky", "warming": "sky", "sleeping": "purple",
    "maintenance": "purple", "gone": "red",
}  # fmt: skip
"""Colour of an answer; anything else is drawn hatched, as unknown."""


class Piece(msgspec.Struct, frozen=True):
    """One answer that held from `left` to `left + width` (percent of the axis)."""

    answer: str
    colour: str
    left: float
    width: float
    seconds: float


class Strip(msgspec.Struct, frozen=True):
    """One question's answers over time, and the legend: answers by the time that they held, longest first."""

    question: str
    pieces: tuple[Piece, ...]
    legend: tuple[Piece, ...]


def strips(states: Sequence[EngineState], frame: TimeFrame) -> tuple[Strip, ...]:
    """The strips of one engine's states; the lifecycle only where it was not serving all the time."""
    out = []
    for question, answer_of in _ANSWERS:
        answers = [(s.at, answer_of(s)) for s in states]
        if question == "Lifecycle" and all(a == "serving" for _, a in answers):
            continue
        pieces = _pieces(answers, frame)
        if pieces:
            out.append(Strip(question, pieces, _legend(pieces)))
    return tuple(out)


def _pieces(answers: Sequence[tuple[float, str]], frame: TimeFrame) -> tuple[Piece, ...]:
    columns: dict[int, Counter[str]] = {}
    for at, answer in answers:
        columns.setdefault(min(int(frame.share(at) * COLUMNS), COLUMNS - 1), Counter())[answer] += 1
    if not columns:
        return ()
    held: list[tuple[int, str]] = []
    last = ""
    for column in sorted(columns):
        winner = columns[column].most_common(1)[0][0]
        if winner != last:
            held.append((column, winner))
            last = winner
    ends = [start for start, _ in held[1:]] + [max(columns) + 1]
    span_s = frame.until_at - frame.from_at
    return tuple(
        Piece(
            answer,
            COLOURS.get(answer, "unknown"),
            round(start / COLUMNS * 100, 2),
            round((end - start) / COLUMNS * 100, 2),
            float(round((end - start) / COLUMNS * span_s)),
        )
        for (start, answer), end in zip(held, ends, strict=True)
    )


def _legend(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    total: dict[str, Piece] = {}
    for piece in pieces:
        before = total.get(piece.answer)
        seconds = piece.seconds + (before.seconds if before else 0.0)
        total[piece.answer] = Piece(piece.answer, piece.colour, 0.0, 0.0, seconds)
    return tuple(sorted(total.values(), key=lambda p: -p.seconds))
