"""The flight recorder: every pipeline call to the journal before it is judged, snapshots, and a capsule per incident.

A capsule needs the pipeline's state at its first call, so a snapshot is kept every five minutes. When an incident
opens, the snapshot from before its onset is held; when it has ended (or an hour has passed), the capsule is written
from the journal. All of it lies below the state folder: `journal/`, `snapshots/`, `capsules/`. At a restart the newest
snapshot and the calls after it bring the pipeline back to where it was.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from .. import __version__
from ..config import Config
from ..model import Batch, Event, Subject, Transition
from .capsule import CapsuleWriter
from .codec import Call
from .framing import TornError, frame, frames
from .journal import Journal
from .quantize import quantized

if TYPE_CHECKING:
    from ..pipeline import Pipeline

SNAPSHOT_EVERY_S = 300.0
SNAPSHOTS_KEPT = 4
BEFORE_ONSET_S = 300.0
AFTER_END_S = 60.0
LONGEST_CAPSULE_S = 3600.0
WARM_UP_S = 900.0
"""How much of the journal is replayed at a restart where no snapshot can be used."""


class _Held(msgspec.Struct, array_like=True):
    """A capsule that is still to be written: the calls from `since` to `until`, and the state before them."""

    incident: str
    since: float
    until: float
    snapshot: bytes


class Recorder:
    """What the agent has seen, on disk. `record` and `noticed` are for the tick; `tidy` is slow and is not.

    `counts`: written_capsules, cut_capsules, failed_snapshots, failed_capsules (the journal has counts of its own).
    """

    def __init__(self, state_dir: str | Path, config: Config) -> None:
        self.folder = Path(state_dir)
        self.config = config
        bounds = config.bounds
        self.journal = Journal(
            self.folder / "journal", keep_s=bounds.journal_hours * 3600.0, keep_bytes=bounds.journal_bytes
        )
        self.counts: Counter[str] = Counter()
        self._gap: tuple[float, int] | None = None
        self._snapshot_due = 0.0
        self._to_write: tuple[float, bytes] | None = None

    def record(self, now: float, batches: Sequence[Batch]) -> Call:
        """Round and append a call, and return it as it is to be judged. What a full disk kept out becomes an event."""
        if self._gap is not None:
            batches = (*batches, _gap_batch(now, *self._gap))
        call = quantized(now, batches)
        if self.journal.append(*call):
            self._gap = None
        else:
            since, count = self._gap or (now, 0)
            self._gap = (since, count + 1)
        return call

    def noticed(self, now: float, pipeline: Pipeline, transitions: Sequence[Transition]) -> None:
        """After a step: take a snapshot when one is due, hold what the capsules of new incidents need."""
        if now >= self._snapshot_due:
            self._snapshot_due = now + SNAPSHOT_EVERY_S
            self._to_write = (now, pipeline.snapshot())
        for transition in transitions:
            incident = transition.incident
            if transition.kind == "opened":
                self._hold(incident.id, incident.onset_at)
            elif transition.kind == "resolved":
                self._release(incident.id, (incident.resolved_at or now) + AFTER_END_S)

    def tidy(self, now: float) -> None:
        """Write the snapshot that is due, capsules that are complete, pack and expire. Off the tick, in a thread."""
        try:
            self._write_snapshot()
        except OSError:
            self.counts["failed_snapshots"] += 1
        self.journal.tidy(now)
        for path, held in self._all_held():
            if held.until < now:
                try:
                    self.write_capsule(held, self.capsule_path(held.incident))
                    path.unlink(missing_ok=True)
                except OSError:
                    self.counts["failed_capsules"] += 1
        self._expire_capsules()

    def close(self, now: float) -> None:
        """Close the open segment and write what is due, so that the next start finds everything in place."""
        self.journal.close()
        self.tidy(now)

    def warm(self, cold: bool = False) -> Iterator[tuple[Pipeline, Call | None]]:
        """The pipeline as it was, then each recorded call that it has not seen. The caller steps it, muted.

        Starts from the newest snapshot that can be restored, else cold with the last 15 minutes. The first pair has
        None for a call. `cold` passes over the snapshots: one that was restored may still be of other code.
        """
        from ..pipeline import Pipeline

        last = self._last_call_at()
        for at, path in () if cold else reversed(self._snapshots()):
            if at < last - WARM_UP_S:
                break
            try:
                pipeline = Pipeline.restore(self.config, _read_snapshot(path))
            except Exception:
                self.counts["failed_snapshots"] += 1  # another version, or damage: the calls are still there
                continue
            yield pipeline, None
            yield from ((pipeline, call) for call in self.journal.calls(since=at) if call[0] > at)
            return
        pipeline = Pipeline(self.config)
        yield pipeline, None
        yield from ((pipeline, call) for call in self.journal.calls(since=last - WARM_UP_S))

    def capsule_path(self, incident: str) -> Path:
        """Where the capsule of an incident is, or will be."""
        return self.folder / "capsules" / f"{_file_name(incident)}.capsule"

    def held(self, incident: str) -> _Held | None:
        """What is held for an incident whose capsule is not written yet."""
        return next((held for _, held in self._all_held() if held.incident == incident), None)

    def write_capsule(self, held: _Held, path: Path) -> Path:
        """Write the calls of a held incident as a capsule. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with CapsuleWriter(path, self.config, snapshot=held.snapshot, incident=held.incident) as writer:
            for now, batches in self.journal.calls(held.since, held.until):
                writer.append(now, batches)
        self.counts["written_capsules"] += 1
        return path

    def _hold(self, incident: str, onset_at: float) -> None:
        snapshots = self._snapshots()
        early = [s for s in snapshots if s[0] <= onset_at - BEFORE_ONSET_S]
        chosen = early[-1] if early else (snapshots[0] if snapshots else None)
        since, snapshot = onset_at - WARM_UP_S, b""
        try:
            if chosen is not None:
                since, snapshot = chosen[0] + 1e-6, _read_snapshot(chosen[1])
            self._write_held(_Held(incident, since, onset_at + LONGEST_CAPSULE_S, snapshot))
        except (OSError, TornError, StopIteration, ValueError, msgspec.MsgspecError, zlib.error):
            self.counts["failed_capsules"] += 1

    def _release(self, incident: str, until: float) -> None:
        held = self.held(incident)
        if held is not None and until < held.until:
            held.until = until
            try:
                self._write_held(held)
            except OSError:
                self.counts["failed_capsules"] += 1  # it will be written later, an hour after the onset

    def _write_held(self, held: _Held) -> None:
        path = self.capsule_path(held.incident).with_suffix(".held")
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_whole(path, frame(msgspec.msgpack.encode(held)))

    def _all_held(self) -> list[tuple[Path, _Held]]:
        found: list[tuple[Path, _Held]] = []
        for path in sorted((self.folder / "capsules").glob("*.held")):
            try:
                found.append((path, msgspec.msgpack.decode(next(frames(path.read_bytes())), type=_Held)))
            except (OSError, TornError, StopIteration, msgspec.MsgspecError):
                self.counts["failed_capsules"] += 1
                path.unlink(missing_ok=True)
        return found

    def _write_snapshot(self) -> None:
        if self._to_write is None:
            return
        at, data = self._to_write
        self._to_write = None
        folder = self.folder / "snapshots"
        folder.mkdir(parents=True, exist_ok=True)
        body = msgspec.msgpack.encode((__version__, zlib.compress(data, 1)))
        _write_whole(folder / f"{round(at * 1e6):020d}.snapshot", frame(body))
        for _, path in self._snapshots()[:-SNAPSHOTS_KEPT]:
            path.unlink(missing_ok=True)

    def _snapshots(self) -> list[tuple[float, Path]]:
        """Time and file of each snapshot, oldest first."""
        paths = sorted((self.folder / "snapshots").glob("*.snapshot"))
        return [(int(path.stem) / 1e6, path) for path in paths if path.stem.isdigit()]

    def _last_call_at(self) -> float:
        segments = self.journal.segments()
        if not segments:
            return 0.0
        return max((call[0] for call in self.journal.calls(since=segments[-1][0])), default=segments[-1][0])

    def _expire_capsules(self) -> None:
        capsules = sorted((self.folder / "capsules").glob("*.capsule"), key=lambda p: p.stat().st_mtime)
        for path in capsules[: -self.config.bounds.capsules]:
            path.unlink(missing_ok=True)
            self.counts["cut_capsules"] += 1


def _gap_batch(now: float, since: float, calls: int) -> Batch:
    """What a full disk kept from being recorded: a replay across it is not exact, and says so."""
    subject = Subject(host="recorder")
    detail = {"since": f"{since:.3f}", "calls": str(calls)}
    return Batch("recorder", "changes", subject, now, events=(Event(subject, now, "journal_cut", detail),))


def _read_snapshot(path: Path) -> bytes:
    """Raises ValueError for a snapshot of another version, OSError and others for one that cannot be read."""
    version, packed = msgspec.msgpack.decode(next(frames(path.read_bytes())), type=tuple[str, bytes])
    if version != __version__:
        raise ValueError(f"{path}: a snapshot of gpuwatch {version}")
    return zlib.decompress(packed)


def _write_whole(path: Path, data: bytes) -> None:
    part = path.with_suffix(".part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _file_name(incident: str) -> str:
    return "".join(c for c in incident if c.isalnum() or c in "-_")[:80] or "unnamed"
