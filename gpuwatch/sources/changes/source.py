"""What was changed, and when: version, model, arguments, image, driver, adapters, and announcements from outside.

The source is told what engines and devices say of themselves (`saw`), looks at their command lines where their pids are
known and at the pod's downward API, and takes announcements (POST /api/v1/changes). Each difference is one Event; the
first sight of a subject is none, unless it was known before the agent was restarted.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ...model import Batch, Event, Info, Subject
from ..host.process_facts import thread_settings
from .arguments import argument_facts
from .known import KnownFacts
from .podinfo import CHANGING
from .secrets import safe_text

KINDS = ("change", "maintenance", "version", "arguments", "restart")
"""What may be announced."""

_VERSION = ("version", "engine_version", "driver")
_THINGS = ("model", "model_version", "adapters", *CHANGING)
_MAX_WAITING = 200
_MAX_DETAILS = 16
_TOLD_TWICE_S = 120.0
"""The page, the engine's own answer and its command line may tell of one change, one after the other."""


class ChangesSource:
    """Events about changes. `pids` says which process to look at for which engine; `psutil` and `proc` are the world.

    `pod` reads the downward API for `engines`, those that share the agent's pod. `known` is the memory.
    """

    name = "changes"
    role = "changes"

    def __init__(
        self,
        subject: Subject,
        pids: Callable[[], Mapping[Subject, int]] = dict,
        psutil: Any = None,
        hertz: float = 0.2,
        *,
        known: KnownFacts | None = None,
        pod: Callable[[], dict[str, str]] = dict,
        engines: Iterable[Subject] = (),
        proc: Path = Path("/proc"),
    ) -> None:
        self.subject = subject
        self.interval_s = 1 / hertz
        self.pids = pids
        self._psutil = psutil
        self._proc = proc
        self._pod = pod
        self._engines = tuple(engines)
        self._lock = threading.RLock()
        self._waiting: deque[Event] = deque()
        self._dropped = 0
        self._known = known or KnownFacts()
        self._read: dict[Subject, tuple[int, float]] = {}
        self._pod_facts: dict[str, str] = {}
        self._told: dict[tuple[Subject, str, str], float] = {}

    def saw(self, info: Info, how: str = "said") -> None:
        """Compare what a subject says of itself with what it said before. `how` keeps those who tell it apart."""
        self._compare(info.subject, how, info.labels, info.at)

    def announce(self, subject: Subject, at: float, what: str, detail: Mapping[str, str]) -> None:
        """Take an announced change. ValueError for another kind than KINDS; text is cut and cleaned of secrets."""
        if what not in KINDS:
            raise ValueError(f"what: {what!r} is none of {', '.join(KINDS)}")
        clean = {safe_text(k)[:64]: safe_text(str(v)) for k, v in list(detail.items())[:_MAX_DETAILS]}
        self._put(Event(subject, at, what, clean))

    async def poll(self, now: float) -> Batch:
        """Look at the processes and the pod, in a thread, and hand over what has happened since the last poll."""
        info = await asyncio.to_thread(self._look, now)
        with self._lock:
            events, dropped = tuple(self._waiting), self._dropped
            self._waiting.clear()
            self._dropped = 0
        return Batch(self.name, self.role, self.subject, now, events=events, info=info, dropped=dropped)

    async def aclose(self) -> None:
        """Nothing is open."""

    def _look(self, now: float) -> tuple[Info, ...]:
        return (*self._command_lines(now), *self._in_pod(now))

    def _command_lines(self, now: float) -> tuple[Info, ...]:
        """Arguments of processes that are new since the last look. A later process of the same engine is a restart."""
        found: list[Info] = []
        for subject, pid in self.pids().items():
            try:
                process = self._process(pid)
                started = process.create_time()
                before = self._read.get(subject)
                if before == (pid, started):
                    continue
                command = process.cmdline()
            except (self._psutil.Error, OSError):
                continue  # gone, or not ours to see
            self._read[subject] = (pid, started)
            if before is not None and started > before[1]:
                self._put(Event(subject, min(started, now), "restart", {"how": "a new process"}))
            settings = {f"env_{name.lower()}": value for name, value in thread_settings(pid, self._proc).items()}
            facts = argument_facts(command, self._known.key) | settings
            self._compare(subject, "started with", facts, now)
            found.append(Info(subject, now, facts))
        return tuple(found)

    def _in_pod(self, now: float) -> tuple[Info, ...]:
        """What the downward API says, for each engine of the pod; told once, and again when it changes."""
        facts = self._pod()
        if not facts or facts == self._pod_facts:
            return ()
        self._pod_facts = facts
        for subject in self._engines:
            self._compare(subject, "pod", facts, now)
        return tuple(Info(subject, now, facts) for subject in self._engines)

    def _process(self, pid: int) -> Any:
        if self._psutil is None:
            import psutil

            self._psutil = psutil
        return self._psutil.Process(pid)

    def _compare(self, subject: Subject, how: str, labels: Mapping[str, str], at: float) -> None:
        named = (*_VERSION, *_THINGS)
        kept = {k: safe_text(v) for k, v in labels.items() if k in named or k.startswith(("arg_", "env_"))}
        if not kept:
            return
        with self._lock:
            try:
                before = self._known.replace(subject, how, kept)
            except ValueError:
                self._dropped += 1
                return
        if before is None or before == kept:
            return
        moved = {k: (before.get(k, ""), kept.get(k, "")) for k in {**before, **kept} if before.get(k) != kept.get(k)}
        for what, keys in (("version", _VERSION), ("change", _THINGS), ("arguments", None)):
            mine = {k: v for k, v in moved.items() if (k in keys if keys else k not in (*_VERSION, *_THINGS))}
            words = {
                k: safe_text(f"{old or '–'} → {new or '–'}") for k, (old, new) in list(mine.items())[:_MAX_DETAILS]
            }
            detail = {k: text for k, text in words.items() if self._is_news(subject, k, text, at)}
            if detail:
                self._put(Event(subject, at, what, detail))

    def _is_news(self, subject: Subject, key: str, text: str, at: float) -> bool:
        with self._lock:
            last = self._told.get((subject, key, text), -math.inf)
            self._told = {thing: told_at for thing, told_at in self._told.items() if at - told_at < _TOLD_TWICE_S}
            self._told[subject, key, text] = at
            return at - last >= _TOLD_TWICE_S

    def _put(self, event: Event) -> None:
        with self._lock:
            if len(self._waiting) >= _MAX_WAITING:
                self._dropped += 1
            else:
                self._waiting.append(event)
