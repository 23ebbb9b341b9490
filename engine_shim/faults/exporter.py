"""What goes wrong with the looking itself: an exporter that shows the same page for ever, while the engine runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .interval import Window

MAX_PAGES = 16  # kept by name: a page can be asked for in parts


@dataclass(frozen=True)
class ExporterFrozen(Window):
    """Pages show what they showed when it began."""


class FrozenPages:
    """Keeps the last pages for as long as a fault says so."""

    def __init__(self, faults: Sequence[ExporterFrozen], before: FrozenPages | None = None) -> None:
        self._faults = list(faults)
        self._kept: dict[str, bytes] = {} if before is None else before._kept

    def page(self, name: str, fresh: bytes, now: float) -> bytes:
        """The page that a reader gets instead of the `fresh` one."""
        if name not in self._kept or not any(fault.acts(now) for fault in self._faults):
            if len(self._kept) >= MAX_PAGES:
                self._kept.pop(next(iter(self._kept)))
            self._kept[name] = fresh
        return self._kept[name]
