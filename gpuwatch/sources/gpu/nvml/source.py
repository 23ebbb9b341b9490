"""The source: all NVIDIA devices of this machine, one poll after another, whatever state the driver is in.

Calls run in a thread of their own: a driver that stalls is reported with its age and not waited for. Without a driver the
source says so and tries again slowly. Times are unix seconds.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ....model import Batch, Event, Frame, Info, Subject
from ...poll import Clock
from ..driver_thread import DriverThread, StalledError
from ..pace import Backoff, Pace, Rates
from .absences import Absences
from .board import Board
from .library import CLOSED, Library, NvmlError, said
from .look import FAST, Look
from .processes import GpuProcess
from .session import Session
from .xid import DeviceEvent, Tally

PATIENCE_S = 0.5
FIND_EVERY_S = 60.0
SLOWEST_RETRY_S = 60.0
FRESH_EVERY = 4


class Said(msgspec.Struct, frozen=True):
    """What one look brought; `error` where the library does not run."""

    frames: tuple[Frame, ...] = ()
    events: tuple[Event, ...] = ()
    info: tuple[Info, ...] = ()
    dropped: int = 0
    error: str | None = None


class NvmlSource:
    """Polls every device through NVML. `binding` is nvidia-ml-py's module; None: imported when the source starts."""

    name = "nvml"
    role = "gpu"

    def __init__(
        self,
        clock: Clock,
        host: str,
        hertz: float = 1.0,
        rates: Rates | None = None,
        binding: Any = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.subject = Subject(host=host)
        self.interval_s = 1 / hertz
        self._clock = clock
        self._rates = rates or Rates()
        self._binding = binding
        self._patience_s = patience_s
        self._thread: DriverThread[Said] = DriverThread("gpuwatch-nvml")
        self._library = Library(binding)
        self._session: Session | None = None
        self._start = Backoff(1.0, SLOWEST_RETRY_S)
        self._find = Pace(FIND_EVERY_S)
        self._returns = Backoff(1.0, SLOWEST_RETRY_S)
        self._why = ""
        self._lost_at: float | None = None
        self._absences = Absences()
        self._tally = Tally(self.subject)
        self._told: dict[Subject, dict[str, str]] = {}
        self._owners: dict[str, tuple[GpuProcess, ...]] = {}
        self._dead: dict[int, str] = {}

    async def poll(self, now: float) -> Batch:
        """Look once; or hear what the look that is under way has brought."""
        try:
            said = await self._thread.look(self.look, now, self._patience_s)
        except StalledError as stalled:
            said = Said(error=f"{stalled} (in {self._library.asking})")
        return Batch(
            self.name, self.role, self.subject, self._clock.now(), error=said.error,
            frames=said.frames, events=said.events, info=said.info, dropped=said.dropped,
        )  # fmt: skip

    async def aclose(self) -> None:
        """Stop the library and the threads; a driver that is silent is left behind."""
        await self._thread.close(self._close, self._patience_s)

    def owners(self) -> dict[str, tuple[GpuProcess, ...]]:
        """The processes on each device, by its subject's key (`UUID`, `UUID/instance`), as of the last list."""
        return dict(self._owners)

    def devices(self) -> dict[str, dict[str, str]]:
        """What each device and instance said of itself, by its subject's key."""
        return {subject.gpu: dict(facts) for subject, facts in tuple(self._told.items()) if subject.gpu}

    def unreachable(self) -> dict[str, str]:
        """Devices that do not answer, by UUID, or by index where not even that could be had, and why."""
        dead = {f"index {index}": why for index, why in self._dead.items()}
        return dead | {uuid: away.reason for uuid, away in tuple(self._absences.away.items())}

    def look(self) -> Said:
        """Ask everything that is due. In the driver's thread."""
        now = self._clock.now()
        look = Look(self._clock.now)
        if self._session is not None and self._wants_fresh_start(self._session, now):
            self._absences.with_the_driver(self._session.boards.values(), "the driver was started anew", now)
            self._close()
        session = self._session or self._open(now, look)
        if session is not None:
            try:
                self._look(session, look, now)
                if session.is_lost():
                    down = next(iter(session.boards.values())).down
                    self._lose(session, f"no device answers: {down}", look, now)
            except NvmlError as error:
                self._lose(session, str(error), look, now)
        look.events += self._absences.compare(self._session.boards if self._session else {}, now)
        away = self._absences.away  # among them boards that were read a moment before the driver was lost
        look.frames = [frame for frame in look.frames if frame.subject.gpu.partition("/")[0] not in away]
        for uuid in away:
            self._owners.pop(uuid, None)
            look.add(Subject(gpu=uuid), FAST, now, {"gpu_up": 0.0})
        why = self._why if self._session is None else None
        return Said(tuple(look.frames), tuple(look.events), tuple(look.info), look.dropped, why)

    # --- the library's life ----------------------------------------------------------------------------------------

    def _open(self, now: float, look: Look) -> Session | None:
        """Start the library, where it is time to try."""
        if not self._start.due(now):
            return None
        self._library = Library(self._binding)
        try:
            session = self._session = Session(self._library, self._rates)
        except NvmlError as error:
            self._why = f"NVML does not start: {error}"
            self._start.failed(now)
            if self._told:
                self._note_loss(str(error), look, now)
            return None
        self._find.due(now)
        if self._lost_at is not None:
            look.events.append(Event(self.subject, now, "nvml_returned", {"away_s": f"{now - self._lost_at:.0f}"}))
            look.events += self._absences.without_the_driver(session.boards, now)
            self._lost_at = None
        return session

    def _lose(self, session: Session, reason: str, look: Look, now: float) -> None:
        """The library is lost: everything is void until it starts again."""
        self._why = f"NVML is lost: {reason}"
        self._start.failed(now)
        self._note_loss(reason, look, now)
        self._absences.with_the_driver(session.boards.values(), reason, now)
        self._close()

    def _note_loss(self, reason: str, look: Look, now: float) -> None:
        if self._lost_at is None:
            self._lost_at = now
            look.events.append(Event(self.subject, now, "nvml_lost", {"error": reason[:200]}))

    def _wants_fresh_start(self, session: Session, now: float) -> bool:
        """A board that is lost is looked for under the running library, and each fourth time under a fresh one."""
        if not session.misses_any() or not self._returns.due(now) or (self._returns.failures + 1) % FRESH_EVERY:
            return False
        self._returns.failed(now)
        return True

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    # --- a look ----------------------------------------------------------------------------------------------------

    def _look(self, session: Session, look: Look, now: float) -> None:
        self._find_boards(session, look, now)
        events = session.events
        for event in self._heard(session, look):
            look.events.append(self._tally.hear(event, now))
            board = session.boards.get(event.gpu)
            if event.kind == "mig_changed" and board is not None:
                look.to_recut.append(board)
        for board in session.boards.values():
            if not board.down:
                listens = events is not None and board.uuid in events.registered
                look.read(board, self._tally.signals(board.uuid, listens))
        if self._start.failures and any(board.device.answers() for board in session.boards.values()):
            self._start = Backoff(1.0, SLOWEST_RETRY_S)
        for board in {board.uuid: board for board in look.to_recut}.values():
            self._recut(board, look, now)
        self._owners |= look.owners
        for board in look.to_describe:
            self._describe(session, board, look, now)
        named = {board.index for board in session.boards.values() if board.down}
        self._dead = {index: why for index, why in session.dead.items() if index not in named}
        unreachable = ", ".join(f"{index}: {why}" for index, why in session.dead.items())
        self._tell(self.subject, {"gpus": str(len(session.boards)), "gpus_unreachable": unreachable}, look, now)

    def _heard(self, session: Session, look: Look) -> list[DeviceEvent]:
        if session.events is None:
            return []
        heard, dropped = session.events.take()
        look.dropped += dropped
        return heard

    def _find_boards(self, session: Session, look: Look, now: float) -> None:
        """Boards come, go and return, and instances are cut anew."""
        usual = self._find.due(now)
        again = session.misses_any() and self._returns.due(now)
        if again:
            self._returns.failed(now)
        elif not session.misses_any():
            self._returns = Backoff(1.0, SLOWEST_RETRY_S)
        if usual or again:
            session.find_boards()
        if usual:
            look.to_recut += [board for board in session.boards.values() if not board.down]

    def _recut(self, board: Board, look: Look, now: float) -> None:
        before = set(board.instances)
        try:
            if not board.look_for_instances():
                return
        except NvmlError as error:
            if error.code in CLOSED:
                raise
            board.down, board.is_gone = said(error.code), True
            return
        after = set(board.instances)
        for number in before - after:
            self._owners.pop(f"{board.uuid}/{number}", None)
        cut = {"mig_instances": f"{_numbers(before)} → {_numbers(after)}"}
        look.events.append(Event(board.subject, now, "change", cut))
        look.to_describe.append(board)

    def _describe(self, session: Session, board: Board, look: Look, now: float) -> None:
        refused = session.events.refused.get(board.uuid) if session.events is not None else None
        for subject, facts in board.facts():
            if subject == board.subject:
                facts["xid_events"] = "watched" if refused is None else f"no: {said(refused)}"
            self._tell(subject, facts, look, now)

    def _tell(self, subject: Subject, facts: dict[str, str], look: Look, now: float) -> None:
        if self._told.get(subject) != facts:
            self._told[subject] = facts
            look.info.append(Info(subject, now, facts))


def _numbers(instances: set[int]) -> str:
    return ", ".join(map(str, sorted(instances))) or "none"
