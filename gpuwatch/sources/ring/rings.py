"""The step rings of one engine: finds the file of each rank, when it appears, and reads them all as one source.

A ring may come later than the agent (an engine takes minutes to load) or never. It is this engine's if the configuration
names it, else if it has the engine's name, else if it says the port that the engine's URL has: who shares a ring
directory shares a host.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit

from ...config import EngineTarget
from ...model import Batch, Subject
from ..poll import Clock
from .ring_file import RingError, RingFile
from .steps import StepsSource

_LOOK_EVERY_S = 5.0
_MOST_FILES = 512
_MOST_RANKS = 64
_NAMED = re.compile(r"(?P<stem>.+)-(?P<rank>\d{1,4})\.ring")


class EngineRings:
    """Follows every rank's ring of `target`. Times are unix seconds."""

    role = "steps"

    def __init__(self, target: EngineTarget, ring_dir: str, clock: Clock, hertz: float = 5.0) -> None:
        self._engine = target.name or urlsplit(target.url).netloc
        self.name = f"steps:{self._engine}"
        self.subject = Subject(engine=self._engine)
        self.interval_s = 1 / hertz
        self._configured = Path(target.ring) if target.ring else None
        self._directory = self._configured.parent if self._configured else Path(ring_dir)
        self._port = urlsplit(target.url).port
        self._clock = clock
        self._hertz = hertz
        self._rings: dict[int, tuple[Path, StepsSource]] = {}  # by rank
        self._looked_into: dict[tuple[int, int], tuple[int | None, int]] = {}  # device, inode -> port, time of creation
        self._look_at = -math.inf

    @property
    def pid(self) -> int:
        """The engine's process as its ring names it; 0 before a ring has been read."""
        return next((ring.pid for _, ring in self._rings.values() if ring.pid), 0)

    @property
    def file_name(self) -> str:
        """The name of the file that `pid` was read from; empty before that."""
        return next((path.name for path, ring in self._rings.values() if ring.pid), "")

    @property
    def absent(self) -> str:
        """Why there is nothing to read; empty where a ring is followed."""
        return "" if self._rings else f"no ring of this engine in {self._directory}"

    def is_live(self) -> bool:
        """True while a ring shows more than a page could."""
        return any(ring.is_live() for _, ring in self._rings.values())

    async def poll(self, now: float) -> Batch:
        """Read what is new in all of them. RingError (a failed poll) where none of those that there are can be read."""
        if now >= self._look_at:
            self._look_at = now + _LOOK_EVERY_S
            await self._find()
        told = await asyncio.gather(*(ring.poll(now) for _, ring in self._rings.values()), return_exceptions=True)
        batches = [batch for batch in told if isinstance(batch, Batch)]
        failed = [error for error in told if isinstance(error, BaseException)]
        if failed and not batches:
            raise failed[0]
        return Batch(
            self.name, self.role, self.subject, now,
            frames=tuple(chain.from_iterable(b.frames for b in batches)),
            spans=tuple(chain.from_iterable(b.spans for b in batches)),
            requests=tuple(chain.from_iterable(b.requests for b in batches)),
            open_steps=tuple(chain.from_iterable(b.open_steps for b in batches)),
            events=tuple(chain.from_iterable(b.events for b in batches)),
            info=tuple(chain.from_iterable(b.info for b in batches)),
            dropped=sum(b.dropped for b in batches) + len(failed),
        )  # fmt: skip

    async def aclose(self) -> None:
        """Close the files."""
        await asyncio.gather(*(ring.aclose() for _, ring in self._rings.values()))

    async def _find(self) -> None:
        """Take up the rings that are there and not followed yet."""
        for rank, path in sorted(self._candidates().items()):
            followed = self._rings.get(rank)
            if followed is not None and followed[0] == path:
                continue
            if followed is not None:
                await followed[1].aclose()
            elif len(self._rings) >= _MOST_RANKS:
                continue
            subject = Subject(engine=self._engine, rank=rank)
            self._rings[rank] = path, StepsSource(path, subject, self._clock, self._hertz)

    def _candidates(self) -> dict[int, Path]:
        """The file of each rank: by name; where the directory has no such name, the newest that says this port."""
        files = list(_ring_files(self._directory))
        if self._configured is not None:
            stem, rank = _named(self._configured)
            return {n: path for path, name, n in files if name == stem != ""} | {rank: self._configured}
        stem = file_stem(self._engine)
        named = {rank: path for path, name, rank in files if name == stem}
        if named or self._port is None:
            return named
        newest: dict[int, tuple[int, Path]] = {}
        for path, _, rank in files:
            port, created_ns = self._look_into(path)
            if port == self._port and created_ns > newest.get(rank, (-1, path))[0]:
                newest[rank] = created_ns, path
        return {rank: path for rank, (_, path) in newest.items()}

    def _look_into(self, path: Path) -> tuple[int | None, int]:
        """The port that a ring says its engine listens on, and when it was made; each file is looked into once."""
        try:
            status = path.stat()
            key = status.st_dev, status.st_ino
            known = self._looked_into.get(key)
            if known is None:
                if len(self._looked_into) >= _MOST_FILES:
                    self._looked_into.clear()
                known = self._looked_into[key] = _port_and_birth(path)
            return known
        except OSError:
            return None, 0


def file_stem(engine: str) -> str:
    """An engine's name as a file name (docs/ring.md): letters, digits, dot, dash and underscore are kept."""
    kept = "".join(c if c.isalnum() or c in "-_." else "_" for c in engine)[:80].lstrip(".")
    return kept or "engine"


def _port_and_birth(path: Path) -> tuple[int | None, int]:
    try:
        ring = RingFile(str(path))
    except RingError:
        return None, 0
    ring.close()
    port = ring.info.get("port")
    return port if isinstance(port, int) else None, ring.created_unix_ns


def _ring_files(directory: Path) -> Iterator[tuple[Path, str, int]]:
    """The ring files of a directory with engine and rank by their names, a bounded number of them."""
    try:
        with os.scandir(directory) as entries:
            for entry, _ in zip(entries, range(_MOST_FILES), strict=False):
                stem, rank = _named(Path(entry.path))
                if stem:
                    yield Path(entry.path), stem, rank
    except OSError:
        return  # no such directory: no engine writes a ring here


def _named(path: Path) -> tuple[str, int]:
    """Engine and rank of a file name; no engine and rank 0 where it is another kind of name."""
    named = _NAMED.fullmatch(path.name)
    return (named["stem"], int(named["rank"])) if named else ("", 0)
