"""Takes the stacks of an engine when an incident opens: once for each, seldom, beside the tick, into the state folder.

The files lie in `stacks/<incident>.json` next to the capsules; the oldest go when there are too many.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec

from ..model import Subject, Transition
from .dump import StackLook, look

log = logging.getLogger(__name__)

EVERY_S = 60.0
MOST_WAITING = 8
WORTH = ("engine_down", "frontend_host", "compute", "unknown")
"""Families whose incidents a stack explains; others are decided by what is queued, not by where a thread stands."""


class Asked(msgspec.Struct, frozen=True):
    """An incident whose engine is to be looked at."""

    incident: str
    subject: Subject


class StackTaker:
    """A pump (watch.Pump). `pids` tells the process of each engine now. `counts`: taken, unavailable, skipped, failed."""

    def __init__(
        self,
        folder: Path,
        pids: Callable[[], Mapping[Subject, int]],
        *,
        keep: int = 50,
        take: Callable[[int], Awaitable[StackLook]] = look,
    ) -> None:
        self.folder = folder
        self.counts: Counter[str] = Counter()
        self.last_error = ""
        self._pids = pids
        self._keep = keep
        self._take = take
        self._waiting: list[Asked] = []
        self._known: set[str] = set()
        self._next_at = 0.0
        self._busy = False

    def hear(self, transition: Transition) -> None:
        """Remember to look, where a new incident is of a family that a stack can explain."""
        incident = transition.incident
        if transition.kind != "opened" or incident.family not in WORTH or incident.id in self._known:
            return
        if len(self._waiting) >= MOST_WAITING:
            self.counts["skipped"] += 1
            return
        self._known.add(incident.id)
        where = incident.subject
        self._waiting.append(
            Asked(incident.id, Subject(engine=str(where.get("engine") or ""), rank=int(where.get("rank") or 0)))
        )

    def due(self, now: float) -> bool:
        """Whether there is something to look at, and the last look is long enough ago."""
        return bool(self._waiting) and now >= self._next_at and not self._busy

    async def pump(self, now: float) -> None:
        """Look at one. Failures are counted; nothing is raised into the agent's loop."""
        asked = self._waiting.pop(0)
        self._known = {asked.incident, *(other.incident for other in self._waiting)}
        pids = self._pids()
        pid = pids.get(asked.subject) or pids.get(Subject(engine=asked.subject.engine))
        if not pid:
            self.counts["unavailable"] += 1
            self.last_error = f"the process of {asked.subject.key} is not known: config key engines.pid, or a step ring"
            return
        self._busy, self._next_at = True, now + EVERY_S
        try:
            found = await self._take(pid)
            self.counts["unavailable" if found.unavailable else "taken"] += 1
            self.last_error = found.unavailable
            self._write(asked.incident, found)
        except OSError as error:
            self.counts["failed"] += 1
            self.last_error = f"{error.filename or self.folder}: {error.strerror or error}"
            log.warning("stacks of %s: %s", asked.incident, self.last_error)
        finally:
            self._busy = False

    async def aclose(self) -> None:
        """Nothing is held open."""

    def _write(self, incident: str, found: StackLook) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{incident}.json"
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(found))
        part.replace(path)
        kept = sorted(self.folder.glob("*.json"), key=lambda p: p.stat().st_mtime)
        for old in kept[: -self._keep]:
            old.unlink(missing_ok=True)
