"""One life of the library: from start to loss. Finds the boards by UUID, brings lost ones back, waits for events.

The library is lost when the driver says so, or when no board answers any more (a container that lost its device
rule gets "unknown error" for everything). Then all handles are void, and a new session begins.
"""

from __future__ import annotations

from ..pace import Rates
from .board import Board
from .facts import clean
from .gpm import Request
from .library import CLOSED, REFUSALS, Library, NvmlError, said
from .xid import EventThread

MOST_BOARDS = 64


class Session:
    """The started library with its boards. Raises NvmlError on construction where it does not start."""

    def __init__(self, library: Library, rates: Rates) -> None:
        self.library = library
        self._rates = rates
        library.open()
        self._request = Request(library.binding)
        self.boards: dict[str, Board] = {}
        self.dead: dict[int, str] = {}  # index → why it could not even be named
        self.events: EventThread | None = None
        try:
            self.find_boards()
        except NvmlError:
            self.close()
            raise

    def find_boards(self) -> None:
        """Look at every index for boards that are new, and for those that were down and can be asked again.

        A board that answers keeps its handle. Raises NvmlError where the library is lost.
        """
        found = False
        dead: dict[int, str] = {}
        for index in range(min(int(self.library.ask("nvmlDeviceGetCount")), MOST_BOARDS)):
            try:
                handle = self.library.ask("nvmlDeviceGetHandleByIndex", index)
                uuid = self._name(handle, index)
                known = self.boards.get(uuid)
                if known is not None and not known.down:
                    known.index = index
                    continue
                made = Board(self.library, handle, uuid, index, self._request, self._rates)
            except NvmlError as error:
                if error.code in CLOSED:
                    raise
                dead[index] = said(error.code)
                continue
            found = True
            if known is not None:
                known.close()
            self.boards[uuid] = made
        self.dead = dead
        if found or self.events is None:
            self._watch_events()

    def misses_any(self) -> bool:
        """Whether a board is down, or could not even be named."""
        return bool(self.dead) or any(board.down for board in self.boards.values())

    def is_lost(self) -> bool:
        """Whether there are boards and none answers, without the driver saying that it is they who are lost."""
        silent = [board for board in self.boards.values() if board.down]
        return 0 < len(silent) == len(self.boards) and not all(board.is_gone for board in silent)

    def close(self) -> None:
        """Give everything back and stop the library."""
        if self.events is not None:
            self.events.stop()
        for board in self.boards.values():
            board.close()
        self.library.close()

    def _name(self, handle: object, index: int) -> str:
        """The UUID; where a device has none to tell, its bus address or index. One that only fails now has no other name."""
        try:
            return clean(self.library.ask("nvmlDeviceGetUUID", handle)) or f"index-{index}"
        except NvmlError as error:
            if error.code not in REFUSALS:
                raise
        try:
            return clean(self.library.ask("nvmlDeviceGetPciInfo", handle).busId) or f"index-{index}"
        except NvmlError as error:
            if error.code not in REFUSALS:
                raise
        return f"index-{index}"

    def _watch_events(self) -> None:
        if self.events is not None:
            self.events.stop()
        handles = {uuid: board.handle for uuid, board in self.boards.items() if not board.down}
        self.events = EventThread(self.library.binding, handles)
        self.events.start()
