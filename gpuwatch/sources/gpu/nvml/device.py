"""One device, or one MIG instance: its questions, which of them it refuses, and what it said at a look.

A refusal ("not supported", "no permission") is remembered for this device and call: it is not asked again while the
handle lives. Any other error costs one reading. An error that means the device or the driver is gone goes up.
"""

from __future__ import annotations

from typing import Any

from ....model import Subject
from ..believable import drop_impossible
from .fields import FieldReader
from .gpm import Gpm, Request, sampler, supports
from .library import CLOSED, GONE, INVALID_ARGUMENT, NO_PERMISSION, REFUSALS, Library, NvmlError
from .processes import GpuProcess, ProcessList
from .readings import NEWER, QUESTIONS, SLOW_FIELDS, Lane, Question, Values
from .throttling import Throttling

_ALIASES = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksThrottleReasons")
"""Other ways to the same answer: that one is missing is no news where the first way works."""


class Asked:
    """Counts of one look: answers, and errors that were no refusals, with the last code."""

    __slots__ = ("answered", "dropped", "failed", "last")

    def __init__(self) -> None:
        self.answered = 0
        self.failed = 0
        self.dropped = 0
        self.last = 0


class Device:
    """Asks one handle. `instance` and `board`: of a MIG instance."""

    def __init__(
        self, library: Library, handle: Any, subject: Subject, request: Request,
        instance: int | None = None, board: Any = None,
    ) -> None:  # fmt: skip
        self.library = library
        self.handle = handle
        self.subject = subject
        self.instance = instance
        self.asked = Asked()
        self.refused: dict[str, int] = {}
        mine = [q for q in QUESTIONS if instance is None or q.of_instance]
        self._open: dict[Lane, list[tuple[Question, int]]] = {
            lane: [(q, 0) for q in mine if q.lane == lane] for lane in ("fast", "usage", "slow")
        }
        self._throttling = Throttling(library) if instance is None else None
        self._slow = FieldReader(library, SLOW_FIELDS if instance is None else ())
        self._processes = ProcessList(library, handle)
        self.gpm: Gpm | None = None
        self.gpm_refused = ""
        self._begin_gpm(request, board)

    def begin_look(self) -> None:
        """Start counting anew."""
        self.asked = Asked()

    def read(self, lane: Lane, at: float) -> Values:
        """What the device says in this lane. Raises NvmlError where the device or the driver is gone."""
        values: Values = {}
        again: list[tuple[Question, int]] = []
        for question, way in self._open[lane]:
            now_way = self._ask(question, way, values)
            if now_way < len(question.ways):
                again.append((question, now_way))
        self._open[lane] = again
        if lane == "fast" and self._throttling is not None:
            values |= self._try(self._throttling.read, at)
        elif lane == "slow" and self._slow.asks:
            for name, value in self._try(self._slow.read, at).items():
                values.setdefault(name.removeprefix(NEWER), value)
        return self._believe(values)

    def read_gpm(self, at: float) -> Values:
        """GPM's figures since the last look; nothing where the device has none."""
        if self.gpm is None:
            return {}
        try:
            found = self.gpm.read(at)
        except NvmlError as error:
            self._note(error)
            return {}
        self.asked.answered += bool(found)
        return self._believe(found)

    def read_processes(self) -> tuple[GpuProcess, ...] | None:
        """Who uses it; None where the device does not say."""
        return self._processes.read()

    def answers(self) -> bool | None:
        """Whether the device answered at this look; None where nothing was open to be asked."""
        if self.asked.answered:
            return True
        return False if self.asked.failed else None

    def probe(self) -> None:
        """Ask what every device can answer. Raises NvmlError where the device or the driver is gone."""
        try:
            self.library.ask("nvmlDeviceGetUUID", self.handle)
            self.asked.answered += 1
        except NvmlError as error:
            self._note(error)

    def notes(self) -> dict[str, str]:
        """What this device will not say, and why, as facts."""
        refused = self.refused | self._slow.refused | self._processes.refused
        if self._throttling is not None:
            refused |= self._throttling.refused
        denied = sorted(call for call, code in refused.items() if code == NO_PERMISSION)
        missing = sorted(c for c, code in refused.items() if code != NO_PERMISSION and not c.startswith(NEWER))
        found = {"gpm": "yes" if self.gpm is not None and not self.gpm.refused else f"no: {self._no_gpm()}"}
        if self._throttling is not None:
            found["throttling_from"] = self._throttling.how
        if denied:
            found["no_permission"] = ", ".join(denied)[:250]
        if missing:
            found["not_supported"] = ", ".join(missing)[:250]
        return found

    def close(self) -> None:
        """Give back what was allocated."""
        if self.gpm is not None:
            self.gpm.close()

    def _no_gpm(self) -> str:
        if self.gpm is not None:
            return str(NvmlError("sample", self.gpm.refused)).removeprefix("sample: ")
        return self.gpm_refused or "not asked"

    def _begin_gpm(self, request: Request, board: Any) -> None:
        try:
            supports(self.library, self.handle if board is None else board)
            self.gpm = sampler(self.library, request, self.handle, board, self.instance)
        except NvmlError as error:
            if error.code in GONE or error.code in CLOSED:
                raise
            self.gpm_refused = str(error).partition(": ")[2]
            if error.code == NO_PERMISSION:
                self.refused[error.call] = error.code

    def _ask(self, question: Question, way: int, values: Values) -> int:
        """Ask by the first way that is not refused, and return which that is; all of them: none is left."""
        while way < len(question.ways):
            try:
                values.update(question.ways[way](self.library, self.handle))
            except NvmlError as error:
                if error.code not in REFUSALS:
                    self._note(error)
                    return way
                if error.call not in _ALIASES:
                    self.refused[error.call] = error.code
                way += 1
            else:
                self.asked.answered += 1
                return way
        return way

    def _try(self, read: Any, at: float) -> Values:
        try:
            found: Values = read(self.handle, at)
        except NvmlError as error:
            self._note(error)
            return {}
        self.asked.answered += bool(found)
        return found

    def _note(self, error: NvmlError) -> None:
        if error.code in GONE or error.code in CLOSED:
            raise error
        self.asked.failed += 1
        self.asked.last = error.code
        if self.instance is not None and error.code == INVALID_ARGUMENT:
            raise error  # the handle of an instance that was destroyed

    def _believe(self, values: Values) -> Values:
        self.asked.dropped += drop_impossible(values)
        return values
