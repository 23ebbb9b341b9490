"""The capsule: one file from which a verdict can be made again, anywhere, to the last digit.

Layout: the magic, then frames (framing.py): the header (JSON), the pipeline's snapshot (zlib; empty: from the start),
blocks of pipeline calls (codec.py), and an end frame with the number of calls, without which it was cut short.
Every error names the file and what is wrong with it.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self

import msgspec

from .. import __version__
from ..config import Config
from ..model import Batch
from .codec import Call, CodecError, Encoder, pack_block, unpack_block
from .framing import TornError, frame, frames

if TYPE_CHECKING:
    from ..model import Tick, Verdict
    from ..pipeline import Pipeline

MAGIC = b"GWCAPS01"
CALLS_PER_BLOCK = 60
_HEADER, _SNAPSHOT, _BLOCK, _END = b"H", b"S", b"B", b"E"
_NOT_A_CAPSULE = (TornError, CodecError, msgspec.MsgspecError, zlib.error)


class CapsuleError(Exception):
    """A file that is no capsule, is damaged, or comes from a version that this one cannot read. Exit code 2."""


class Header(msgspec.Struct, frozen=True):
    """What was judged, by what. `rules` is the SHA-256 of each rule's source; `clock` is real or virtual."""

    schema: int
    gpuwatch: str
    clock: str
    config: Config
    rules: dict[str, str] = {}
    meta: dict[str, str | float] = {}
    incident: str = ""


def rule_versions() -> dict[str, str]:
    """SHA-256 of the source of each rule, by stem: whether a replay is judged by the same rules."""
    from ..rules import load_rules

    versions: dict[str, str] = {}
    for stem, rule in load_rules().items():
        source = inspect.getsource(sys.modules[rule.check.__module__])
        versions[stem] = hashlib.sha256(source.encode()).hexdigest()
    return versions


class CapsuleWriter:
    """Writes a capsule call by call; `close` makes it whole. Use as a context manager.

    The file appears under its name when it is whole; until then it is `<name>.part`.
    """

    def __init__(
        self,
        path: str | Path,
        config: Config,
        *,
        clock: str = "real",
        meta: Mapping[str, str | float] | None = None,
        snapshot: bytes = b"",
        incident: str = "",
    ) -> None:
        self.path = Path(path)
        self.calls = 0
        self._part = self.path.with_name(self.path.name + ".part")
        self._file: BinaryIO = self._part.open("wb")
        self._begin()
        self._file.write(MAGIC)
        header = Header(1, __version__, clock, config, rule_versions(), dict(meta or {}), incident)
        self._put(_HEADER, msgspec.json.encode(header))
        self._put(_SNAPSHOT, zlib.compress(snapshot, 1) if snapshot else b"")

    def append(self, now: float, batches: Sequence[Batch]) -> None:
        """Add one pipeline call, as it was given to `Pipeline.step`."""
        self._payloads.append(self._encoder.encode(now, batches))
        self.calls += 1
        if len(self._payloads) >= CALLS_PER_BLOCK:
            self._flush()

    def close(self) -> Path:
        """Write what is left and the end, and give the file its name."""
        self._flush()
        self._put(_END, msgspec.json.encode(self.calls))
        self._file.close()
        return self._part.replace(self.path)

    def abandon(self) -> None:
        """Remove what was written."""
        self._file.close()
        self._part.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _begin(self) -> None:
        self._encoder = Encoder()
        self._payloads: list[bytes] = []

    def _flush(self) -> None:
        if self._payloads:
            self._put(_BLOCK, pack_block(self._payloads))
            self._begin()

    def _put(self, kind: bytes, payload: bytes) -> None:
        self._file.write(frame(kind + payload))


class Capsule:
    """A capsule that has been opened: its header, its snapshot and its calls."""

    def __init__(self, path: Path, header: Header, snapshot: bytes) -> None:
        self.path = path
        self.header = header
        self.snapshot = snapshot

    @classmethod
    def open(cls, path: str | Path) -> Capsule:
        """Read the header and the snapshot. Raises CapsuleError."""
        path = Path(path)
        parts = _parts(path)
        try:
            kind, payload = next(parts)
            if kind != _HEADER:
                raise CapsuleError(f"{path}: a capsule without a header")
            schema = msgspec.json.decode(payload).get("schema")
            if schema != 1:
                raise CapsuleError(f"{path}: capsule schema {schema!r}, this gpuwatch reads 1")
            header = msgspec.json.decode(payload, type=Header)
            kind, payload = next(parts)
            snapshot = zlib.decompress(payload) if payload else b""
        except StopIteration:
            raise CapsuleError(f"{path}: cut short, the header or the snapshot is missing") from None
        except (*_NOT_A_CAPSULE, AttributeError) as error:
            raise CapsuleError(f"{path}: {error}") from error
        return cls(path, header, snapshot)

    def calls(self) -> Iterator[Call]:
        """The recorded pipeline calls in order. Raises CapsuleError at the place where the file is damaged or cut."""
        count = 0
        kind = b""
        try:
            for kind, payload in _parts(self.path):
                if kind == _BLOCK:
                    for call in unpack_block(payload):
                        count += 1
                        yield call
                elif kind == _END and msgspec.json.decode(payload) != count:
                    raise CapsuleError(f"{self.path}: holds {count} calls, its end says {payload.decode()}")
        except _NOT_A_CAPSULE as error:
            raise CapsuleError(f"{self.path}: after {count} calls: {error}") from error
        if kind != _END:
            raise CapsuleError(f"{self.path}: cut short after {count} calls")

    def pipeline(self) -> Pipeline:
        """A pipeline in the state in which the recording began. Raises CapsuleError."""
        from ..pipeline import Pipeline

        if not self.snapshot:
            return Pipeline(self.header.config)
        try:
            return Pipeline.restore(self.header.config, self.snapshot)
        except Exception as error:
            raise CapsuleError(f"{self.path}: the snapshot is of another version: {error}") from error

    def changed_rules(self) -> list[str]:
        """Stems of rules that are not those by which the capsule was judged, and rules that one side lacks."""
        now, then = rule_versions(), self.header.rules
        return sorted(stem for stem in now.keys() | then.keys() if now.get(stem) != then.get(stem))


def replay_ticks(capsule: Capsule) -> Iterator[tuple[Tick, Pipeline]]:
    """Execute the recorded calls again, one by one. Raises CapsuleError."""
    pipeline = capsule.pipeline()
    for now, batches in capsule.calls():
        try:
            tick = pipeline.step(now, batches)
        except Exception as error:
            if capsule.header.gpuwatch == __version__ and not capsule.changed_rules():
                raise  # a fault of ours, not of the file
            by = f"gpuwatch {capsule.header.gpuwatch} recorded it, this is {__version__}"
            raise CapsuleError(f"{capsule.path}: cannot be replayed here ({by}): {error}") from error
        yield tick, pipeline


def replay(capsule: Capsule) -> Verdict:
    """Execute the recorded calls again and say the verdict. Raises CapsuleError, also where there are no calls."""
    last: Pipeline | None = None
    for _, pipeline in replay_ticks(capsule):
        last = pipeline
    if last is None:
        raise CapsuleError(f"{capsule.path}: holds no calls")
    return last.verdict()


def _parts(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Kind and payload of each frame. Raises CapsuleError where it is no capsule, TornError where it is damaged."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CapsuleError(f"{path}: {error.strerror or error}") from error
    if data[: len(MAGIC)] != MAGIC:
        raise CapsuleError(f"{path}: not a gpuwatch capsule")
    for payload in frames(data, len(MAGIC)):
        yield payload[:1], payload[1:]
