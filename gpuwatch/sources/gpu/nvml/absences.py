"""Which boards do not answer, since when, and the events that say so: one when a board goes, one when it comes back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from ....model import Event, Subject
from .board import Board


class Away(msgspec.Struct, frozen=True):
    """Since when and why a board does not answer; `alone`: the board, not the whole driver."""

    since: float
    reason: str
    alone: bool


class Absences:
    """Follows all boards by UUID, across lives of the library."""

    def __init__(self) -> None:
        self.away: dict[str, Away] = {}

    def with_the_driver(self, boards: Iterable[Board], reason: str, at: float) -> None:
        """The driver took all of them along."""
        for board in boards:
            self.away.setdefault(board.uuid, Away(at, board.down or reason, alone=False))

    def without_the_driver(self, there: Iterable[str], at: float) -> list[Event]:
        """The driver is back: events for the boards that did not come with it."""
        events: list[Event] = []
        for uuid in self.away.keys() - set(there):
            missing = self.away[uuid]
            if not missing.alone:
                self.away[uuid] = msgspec.structs.replace(missing, alone=True)
                detail = {"error": "not there after the driver came back"}
                events.append(Event(Subject(gpu=uuid), at, "gpu_lost", detail))
        return events

    def compare(self, boards: Mapping[str, Board], at: float) -> list[Event]:
        """Events for the boards that have gone or come back since the last look."""
        events: list[Event] = []
        for uuid, board in boards.items():
            away = self.away.get(uuid)
            if board.down and away is None:
                self.away[uuid] = Away(at, board.down, alone=True)
                events.append(Event(board.subject, at, "gpu_lost", {"index": str(board.index), "error": board.down}))
            elif away is not None and not board.down and board.device.answers():
                del self.away[uuid]
                if away.alone:
                    detail = {"away_s": f"{at - away.since:.0f}", "error": away.reason}
                    events.append(Event(board.subject, at, "gpu_returned", detail))
        return events
