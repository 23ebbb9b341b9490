"""A torch profiler trace from disk: what ran on devices, or where there is none the innermost operators of each thread.

The format is Chrome's trace events (JSON, also gzip), times in microseconds. Everything but name, times, place, correlation
and shapes is skipped while it is decoded.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import Any

import msgspec

MOST_BYTES = 1 << 30
MOST_TIMES = 100
"""A packed trace unpacks to ten to forty times its size; what unpacks to more is made to fill the memory."""
_DEVICE_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_ON_CPU = frozenset({"cpu_op", "user_annotation"})


class TraceError(Exception):
    """A file that is no trace of the torch profiler; the message names it and says what is wrong. Exit code 2."""


class Work(msgspec.Struct, frozen=True):
    """One thing that ran: where (device, or 0 on a CPU), on which lane (stream or thread), when and for how long.

    `shapes` and `types` are those of the operator's inputs where the trace was taken with `record_shapes`. `again`: a
    further piece of an operator that called others meanwhile, no further call.
    """

    name: str
    device: str
    lane: str
    start_s: float
    duration_s: float
    shapes: tuple[tuple[int, ...], ...] = ()
    types: tuple[str, ...] = ()
    again: bool = False


class Trace(msgspec.Struct, frozen=True):
    """All work of a trace. `on_device`: false where only a CPU was traced. `skipped`: events that made no sense."""

    path: str
    on_device: bool
    work: tuple[Work, ...]
    skipped: int = 0


class _Args(msgspec.Struct):
    device: int | None = None
    stream: int | str | None = None
    external: int | None = msgspec.field(default=None, name="External id")
    dims: Any = msgspec.field(default=None, name="Input Dims")
    types: Any = msgspec.field(default=None, name="Input type")


class _Event(msgspec.Struct):
    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = math.nan
    dur: float = math.nan
    pid: int | str = 0
    tid: int | str = 0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _File(msgspec.Struct):
    events: list[msgspec.Raw] = msgspec.field(default_factory=list, name="traceEvents")


def read_trace(path: str | Path) -> Trace:
    """Read a trace. Raises TraceError: unreadable, not JSON, no events, or larger than a gigabyte."""
    try:
        body = _body(Path(path))
        found = msgspec.json.decode(body, type=_File).events
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:
        raise TraceError(f"{path}: damaged gzip: {error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{path}: not a trace of the torch profiler: {error}") from error
    events, skipped = _decoded(found)
    on_device = any(event.cat in _DEVICE_WORK for event, _ in events)
    work = _device_work(events) if on_device else _innermost(events)
    if not work:
        raise TraceError(f"{path}: holds neither kernels nor operators; was the profiler started before the work?")
    return Trace(str(path), on_device, tuple(work), skipped)


def _body(path: Path) -> bytes:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    most = min(MOST_BYTES, MOST_TIMES * path.stat().st_size + (1 << 20)) if packed else MOST_BYTES
    with gzip.open(path) if packed else path.open("rb") as file:
        body = file.read(most + 1)
    if len(body) > MOST_BYTES:
        raise TraceError(f"{path}: more than {MOST_BYTES >> 20} MiB; profile fewer steps")
    if len(body) > most:
        raise TraceError(f"{path}: unpacks to more than {MOST_TIMES} times its size: no trace does")
    return body


def _decoded(found: list[msgspec.Raw]) -> tuple[list[tuple[_Event, _Args]], int]:
    """The complete events with their arguments; how many made no sense."""
    events: list[tuple[_Event, _Args]] = []
    skipped = 0
    decode, decode_args = msgspec.json.Decoder(_Event), msgspec.json.Decoder(_Args)
    for raw in found:
        try:
            event = decode.decode(raw)
            if event.ph != "X" or event.cat not in _DEVICE_WORK | _ON_CPU:
                continue
            args = decode_args.decode(event.args)
        except msgspec.MsgspecError:
            skipped += 1
            continue
        if not math.isfinite(event.ts + event.dur) or event.dur < 0:
            skipped += 1
            continue
        events.append((event, args))
    return events, skipped


def _device_work(events: list[tuple[_Event, _Args]]) -> list[Work]:
    """Kernels and copies, each with the shapes of the operator that launched it."""
    launched = {args.external: args for event, args in events if event.cat == "cpu_op" and args.external is not None}
    work = []
    for event, args in events:
        if event.cat in _DEVICE_WORK:
            source = launched.get(args.external, args) if args.external is not None else args
            device = str(args.device if args.device is not None else event.pid)
            lane = str(args.stream if args.stream is not None else event.tid)
            work.append(_work(event, device, lane, source))
    return work


def _innermost(events: list[tuple[_Event, _Args]]) -> list[Work]:
    """On a CPU: each operator's own time, cut where it calls another. An annotation lends its name to what runs in it."""
    lanes: dict[tuple[Any, Any], list[tuple[_Event, _Args]]] = {}
    for event, args in events:
        lanes.setdefault((event.pid, event.tid), []).append((event, args))
    return [work for (pid, tid), lane in lanes.items() for work in _own_times(lane, f"cpu {pid}", str(tid))]


class _Open(msgspec.Struct):
    """An operator that has begun: the time from which on it works by itself, and the annotation that it runs in."""

    event: _Event
    args: _Args
    since_us: float
    under: str
    pieces: int = 0

    def piece(self, until_us: float, device: str, lane: str) -> list[Work]:
        """What it did since, up to `until_us`; nothing where that is no time."""
        if until_us <= self.since_us:
            return []
        self.pieces += 1
        own = _Event("X", self.event.cat, self.event.name, self.since_us, until_us - self.since_us)
        return [_work(own, device, lane, self.args, self.under, again=self.pieces > 1)]


def _own_times(lane: list[tuple[_Event, _Args]], device: str, thread: str) -> list[Work]:
    work: list[Work] = []
    stack: list[_Open] = []
    for event, args in [
        *sorted(lane, key=lambda pair: (pair[0].ts, -pair[0].dur)),
        (_Event(ts=math.inf, dur=0.0), _Args()),
    ]:
        while stack and stack[-1].event.ts + stack[-1].event.dur <= event.ts:
            done = stack.pop()
            end = done.event.ts + done.event.dur
            work += done.piece(end, device, thread)
            if stack:
                stack[-1].since_us = max(stack[-1].since_us, end)
        if event.ts == math.inf:
            break
        if stack:
            work += stack[-1].piece(event.ts, device, thread)
        under = event.name if event.cat == "user_annotation" else stack[-1].under if stack else ""
        stack.append(_Open(event, args, event.ts, under))
    return work


def _work(event: _Event, device: str, lane: str, source: _Args, under: str = "", *, again: bool = False) -> Work:
    name = f"{under}/{event.name}" if under and under != event.name else event.name
    seconds = event.ts * 1e-6, event.dur * 1e-6
    return Work(name, device, lane, *seconds, _shapes(source.dims), _strings(source.types), again)


def _shapes(said: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(said, list):
        return ()
    return tuple(
        tuple(n for n in one if isinstance(n, int)) if isinstance(one, list) else () for one in said[:8]
    )  # fmt: skip


def _strings(said: Any) -> tuple[str, ...]:
    return tuple(str(one)[:40] for one in said[:8]) if isinstance(said, list) else ()
