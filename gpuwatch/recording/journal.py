"""The journal: each pipeline call on disk before it is judged, so that kill -9 loses nothing that was recorded.

A segment holds about a minute. While open it is `<start>.open`: framed calls, one write(2) each, readable up to a torn
tail. Closed, it becomes `<start>.block`, one frame of packed columns, a fifth of the size. `<start>` is the time of the
first call in microseconds; file names are the order. Old segments go by age and by total size. A disk that is full
costs the calls of that time and nothing else: they are counted, and the next call begins a new segment.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..model import Batch
from .codec import Call, CodecError, Encoder, decode_calls, pack_block, unpack_block
from .framing import TornError, frame, frames

SEGMENT_S = 60.0
SEGMENT_BYTES = 2 * 1024 * 1024
"""An open segment is closed early at this size: packing takes eight times as much memory, and a sidecar has little."""


class Journal:
    """Appends calls below `folder` and reads them back. Not to be shared between processes.

    `counts`: calls, bytes (written), failed_calls, torn_tails, unreadable, expired_segments, cut_segments (by size).
    """

    def __init__(self, folder: str | Path, *, keep_s: float = 6 * 3600.0, keep_bytes: int = 512 * 1024 * 1024) -> None:
        self.folder = Path(folder)
        self.keep_s = keep_s
        self.keep_bytes = keep_bytes
        self.counts: Counter[str] = Counter()
        self.last_error = ""
        self._fd = -1
        self._start = 0  # microseconds
        self._size = 0
        self._open_path: Path | None = None

    def append(self, now: float, batches: Sequence[Batch]) -> bool:
        """Write one call. False where it could not be written; `last_error` says why, and the next call tries anew."""
        try:
            if self._fd < 0:
                self._begin(now)
            data = frame(self._encoder.encode(now, batches))
            if os.write(self._fd, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # a short write: the rest would fail
        except OSError as error:
            self.counts["failed_calls"] += 1
            self.last_error = f"{self.folder}: {error.strerror or error}"
            self._drop_tail()
            return False
        self._size += len(data)
        self.counts["calls"] += 1
        self.counts["bytes"] += len(data)
        self.last_error = ""
        if now - self._start / 1e6 >= SEGMENT_S or self._size >= SEGMENT_BYTES:
            self.close()
        return True

    def close(self) -> None:
        """Close the open segment; it stays readable and waits to be packed."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._open_path = -1, None

    def tidy(self, now: float) -> None:
        """Pack closed segments and remove what is too old or too much. Slow (tens of ms): off the tick, in a thread."""
        try:
            self._expire(now)  # first: on a full disk it makes the room that packing needs
            for path in sorted(self.folder.glob("*.open")):
                if path != self._open_path:
                    self._pack(path)
        except OSError:
            self.counts["failed_tidies"] += 1  # what was not packed stays readable and is tried again

    def calls(self, since: float = 0.0, until: float = float("inf")) -> Iterator[Call]:
        """Recorded calls with since ≤ now ≤ until, in order. Damage is counted and skipped, never raised."""
        segments = self.segments()
        for i, (start, path) in enumerate(segments):
            following = segments[i + 1][0] if i + 1 < len(segments) else float("inf")
            if start > until or following < since:
                continue
            for call in self._read(path):
                if since <= call[0] <= until:
                    yield call

    def segments(self) -> list[tuple[float, Path]]:
        """Start (unix seconds) and file of each segment, oldest first; a packed one wins over its open form."""
        found: dict[int, Path] = {}
        for pattern in ("*.open", "*.block"):
            for path in self.folder.glob(pattern):
                if path.stem.isdigit():
                    found[int(path.stem)] = path
        return [(start / 1e6, found[start]) for start in sorted(found)]

    @property
    def bytes_on_disk(self) -> int:
        """Size of all segments."""
        return sum(_size(path) for _, path in self.segments())

    def _begin(self, now: float) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        segments = self.segments()
        last = round(segments[-1][0] * 1e6) if segments else 0
        self._start = max(round(now * 1e6), last + 1)  # names are the order, even if the machine's clock went back
        path = self.folder / f"{self._start:020d}.open"
        self._open_path, self._size, self._encoder = (
            path,
            0,
            Encoder(),
        )  # before the file exists: `tidy` must not take it
        self._fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o640)

    def _drop_tail(self) -> None:
        """After a failed write: cut half a frame off, so that the segment stays whole, and begin another next time."""
        if self._fd >= 0:
            try:
                os.ftruncate(self._fd, self._size)
            except OSError:
                self.counts["torn_tails"] += 1
            if self._size == 0 and self._open_path is not None:
                self._open_path.unlink(missing_ok=True)
        self.close()

    def _pack(self, path: Path) -> None:
        block = path.with_suffix(".block")
        if not block.exists():
            payloads = list(self._payloads(path))
            if payloads:
                part = path.with_suffix(".part")
                try:
                    part.touch(mode=0o640)
                    part.write_bytes(frame(pack_block(payloads)))
                except CodecError:
                    self.counts["unreadable"] += 1
                    path.rename(path.with_suffix(".bad"))
                    return
                except OSError:
                    part.unlink(missing_ok=True)
                    raise
                part.rename(block)
        path.unlink()

    def _payloads(self, path: Path) -> Iterator[bytes]:
        try:
            yield from frames(path.read_bytes())
        except TornError:
            self.counts["torn_tails"] += 1
        except OSError:
            self.counts["unreadable"] += 1

    def _read(self, path: Path) -> Iterator[Call]:
        if path.suffix == ".open" and not path.exists():
            path = path.with_suffix(".block")  # packed since the folder was listed
        payloads = self._payloads(path)
        try:
            if path.suffix == ".block":
                for payload in payloads:
                    yield from unpack_block(payload)
            else:
                yield from decode_calls(payloads)
        except CodecError:
            self.counts["unreadable"] += 1

    def _expire(self, now: float) -> None:
        segments = [(start, path, _size(path)) for start, path in self.segments() if path != self._open_path]
        total = sum(size for _, _, size in segments)
        for start, path, size in segments:
            too_old = start < now - self.keep_s
            if not too_old and total <= self.keep_bytes:
                break
            path.unlink(missing_ok=True)
            total -= size
            self.counts["expired_segments" if too_old else "cut_segments"] += 1


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
