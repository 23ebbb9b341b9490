"""Rounding before judging: what is recorded is exactly what the pipeline saw, so a replay gives the same verdict.

Whole numbers stay as they are (counters must not lose their last digits). Other values keep 6 significant digits and
never less than 3 decimals; nothing is kept below 1e-12. Times are rounded to microseconds. Rounding twice changes
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ..model import Batch, Event, Floats, Frame, Histogram, Info, LiveRequests, OpenStep, Spans

_Stamped = TypeVar("_Stamped", Event, Info)

_POWERS = 10.0 ** np.arange(0, 13)
_LARGEST = 1e12  # above it a double has no more than 3 decimals that mean anything


def round_values(values: NDArray[Any]) -> Floats:
    """Values to 6 significant digits, at least 3 decimals; whole numbers, NaN and infinities unchanged."""
    x = np.asarray(values, dtype=np.float64)
    with np.errstate(all="ignore"):
        size = np.abs(x)
        fraction = (x != np.rint(x)) & (size < _LARGEST)
        if not fraction.any():
            return x
        places = np.clip(5.0 - np.floor(np.log10(np.where(fraction, size, 1.0))), 3.0, 12.0)
        power = _POWERS[places.astype(np.intp)]
        return np.where(fraction, np.rint(x * power) / power + 0.0, x)


def round_times(times: NDArray[Any]) -> Floats:
    """Unix seconds to microseconds; NaN unchanged."""
    x = np.asarray(times, dtype=np.float64)
    with np.errstate(all="ignore"):
        return np.where(np.abs(x) < 8e9, np.rint(x * 1e6) / 1e6 + 0.0, x)


def round_time(t: float) -> float:
    """One time to microseconds."""
    return round(t * 1e6) / 1e6 + 0.0 if abs(t) < 8e9 else t


def quantized(now: float, batches: Sequence[Batch]) -> tuple[float, tuple[Batch, ...]]:
    """A pipeline call as it is recorded and then judged. Whoever calls `Pipeline.step` passes through here."""
    return round_time(now), round_batches(batches)


def round_batches(batches: Sequence[Batch]) -> tuple[Batch, ...]:
    """Batches as they are to be recorded and judged. The frames of one call are rounded together: one pass, not ten."""
    frames = [frame for batch in batches for frame in batch.frames]
    rounded = iter(_round_frames(frames))
    return tuple(
        replace(
            batch,
            received_at=round_time(batch.received_at),
            took_s=round_time(batch.took_s),
            frames=tuple(next(rounded) for _ in batch.frames),
            histograms=tuple(map(_round_histogram, batch.histograms)) if batch.histograms else (),
            spans=tuple(map(_round_spans, batch.spans)) if batch.spans else (),
            requests=tuple(map(_round_requests, batch.requests)) if batch.requests else (),
            open_steps=tuple(map(_round_open_step, batch.open_steps)) if batch.open_steps else (),
            events=tuple(map(_round_at, batch.events)) if batch.events else (),
            info=tuple(map(_round_at, batch.info)) if batch.info else (),
        )
        for batch in batches
    )


def _round_frames(frames: list[Frame]) -> list[Frame]:
    if not frames:
        return []
    at = round_times(np.concatenate([frame.at for frame in frames]))
    values = round_values(np.concatenate([frame.values.ravel() for frame in frames]))
    done: list[Frame] = []
    row = cell = 0
    for frame in frames:
        rows, cells = len(frame.at), frame.values.size
        shaped = values[cell : cell + cells].reshape(frame.values.shape)
        done.append(Frame(frame.subject, frame.source, frame.names, at[row : row + rows], shaped))
        row, cell = row + rows, cell + cells
    return done


def _round_histogram(histogram: Histogram) -> Histogram:
    exact = round_values(np.array((histogram.sum, histogram.count, *histogram.cumulative))).tolist()
    return replace(histogram, at=round_time(histogram.at), sum=exact[0], count=exact[1], cumulative=tuple(exact[2:]))


def _round_spans(spans: Spans) -> Spans:
    return replace(
        spans,
        start=round_times(spans.start),
        end=round_times(spans.end),
        prompt_tokens=round_values(spans.prompt_tokens),
        output_tokens=round_values(spans.output_tokens),
        cached_tokens=round_values(spans.cached_tokens),
    )


def _round_requests(live: LiveRequests) -> LiveRequests:
    columns = ("stage", "prompt_tokens", "max_tokens", "generated_tokens", "blocks", "preemptions")
    return replace(
        live,
        at=round_time(live.at),
        arrived_at=round_times(live.arrived_at),
        **{name: round_values(getattr(live, name)) for name in columns},
    )


def _round_open_step(step: OpenStep) -> OpenStep:
    fields = ("prefill_tokens", "decode_tokens", "running", "waiting")
    exact = round_values(np.array([getattr(step, name) for name in fields])).tolist()
    return OpenStep(step.subject, round_time(step.at), round_time(step.begun_at), *exact)


def _round_at(item: _Stamped) -> _Stamped:
    return replace(item, at=round_time(item.at))
