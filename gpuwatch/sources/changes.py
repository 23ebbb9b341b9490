"""What was changed, and when: version, model and arguments as the engine shows them, and announcements from outside.

The source is told what engines say of themselves (`saw`), looks at their command lines where their pids are known, and
takes announcements (POST /api/v1/changes). Each difference is one Event; the first sight of an engine is none.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from ..model import Batch, Event, Info, Subject
from .arguments import argument_facts, safe_text

KINDS = ("change", "maintenance", "version", "arguments", "restart")
"""What may be announced."""

_VERSION = ("version", "engine_version")
_MODEL = ("model", "model_version")
_MAX_WAITING = 200
_MAX_DETAILS = 16
_MAX_SUBJECTS = 1000


class ChangesSource:
    """Events about changes. `pids` says which process to look at for which engine; `psutil` is the world."""

    name = "changes"
    role = "changes"

    def __init__(
        self,
        subject: Subject,
        pids: Callable[[], Mapping[Subject, int]] = dict,
        psutil: Any = None,
        hertz: float = 0.2,
    ) -> None:
        self.subject = subject
        self.interval_s = 1 / hertz
        self.pids = pids
        self._psutil = psutil
        self._lock = threading.Lock()
        self._waiting: deque[Event] = deque()
        self._dropped = 0
        self._known: dict[tuple[Subject, str], dict[str, str]] = {}
        self._read: dict[Subject, tuple[int, float]] = {}

    def saw(self, info: Info) -> None:
        """Compare what a subject says of itself with what it said before."""
        self._compare(info.subject, "said", info.labels, info.at)

    def announce(self, subject: Subject, at: float, what: str, detail: Mapping[str, str]) -> None:
        """Take an announced change. ValueError for another kind than KINDS; text is cut and cleaned of secrets."""
        if what not in KINDS:
            raise ValueError(f"what: {what!r} is none of {', '.join(KINDS)}")
        clean = {safe_text(k)[:64]: safe_text(str(v)) for k, v in list(detail.items())[:_MAX_DETAILS]}
        self._put(Event(subject, at, what, clean))

    async def poll(self, now: float) -> Batch:
        """Look at the processes and hand over what has happened since the last poll."""
        info = self._command_lines(now)
        with self._lock:
            events, dropped = tuple(self._waiting), self._dropped
            self._waiting.clear()
            self._dropped = 0
        return Batch(self.name, self.role, self.subject, now, events=events, info=info, dropped=dropped)

    async def aclose(self) -> None:
        """Nothing is open."""

    def _command_lines(self, now: float) -> tuple[Info, ...]:
        """Arguments of processes that are new since the last look."""
        found: list[Info] = []
        for subject, pid in self.pids().items():
            try:
                process = self._process(pid)
                started = process.create_time()
                if self._read.get(subject) == (pid, started):
                    continue
                command = process.cmdline()
            except (self._psutil.Error, OSError):
                continue  # gone, or not ours to see
            self._read[subject] = (pid, started)
            facts = argument_facts(command)
            self._compare(subject, "started with", facts, now)
            found.append(Info(subject, now, facts))
        return tuple(found)

    def _process(self, pid: int) -> Any:
        if self._psutil is None:
            import psutil

            self._psutil = psutil
        return self._psutil.Process(pid)

    def _compare(self, subject: Subject, how: str, labels: Mapping[str, str], at: float) -> None:
        kept = {k: v for k, v in labels.items() if k in (*_VERSION, *_MODEL) or k.startswith("arg")}
        key = (subject, how)
        with self._lock:
            before = self._known.get(key)
            if before is None and len(self._known) >= _MAX_SUBJECTS:
                self._dropped += 1
                return
            self._known[key] = kept
        if before is None or before == kept:
            return
        moved = {k: (before.get(k, ""), kept.get(k, "")) for k in {**before, **kept} if before.get(k) != kept.get(k)}
        for what, keys in (("version", _VERSION), ("change", _MODEL), ("arguments", None)):
            mine = {k: v for k, v in moved.items() if (k in keys if keys else k not in (*_VERSION, *_MODEL))}
            if mine:
                detail = {
                    k: safe_text(f"{old or '–'} → {new or '–'}") for k, (old, new) in list(mine.items())[:_MAX_DETAILS]
                }
                self._put(Event(subject, at, what, detail))

    def _put(self, event: Event) -> None:
        with self._lock:
            if len(self._waiting) >= _MAX_WAITING:
                self._dropped += 1
            else:
                self._waiting.append(event)
