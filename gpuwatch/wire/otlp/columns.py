"""Spans of one instrumentation scope as columns: what a reader fills and a dialect asks.

Only attributes that some dialect asks for are here; every other attribute, event and link was stepped over, its text
never made into an object. Ids are the low eight bytes as unsigned integers (0: none), times unix nanoseconds.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...model import Floats

TEXT_BYTES = 256
"""So much of a text attribute is looked at."""


class Wanted(msgspec.Struct, frozen=True):
    """The keys that are looked for: span attributes as numbers or texts, event names, resource attributes."""

    numbers: dict[bytes, str]
    texts: dict[bytes, str]
    events: frozenset[bytes] = frozenset()
    resource: frozenset[str] = frozenset()


class SpanColumns:
    """`count` spans. `numbers` are NaN and `texts` b"" where a span does not say; both hold keys that were seen only.

    `ids_good`: trace and span id have their length, and the latter is not zero. `names[name[i]]` is the name of span i.
    `events` are (row, name, unix nanoseconds).
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.trace: NDArray[np.uint64] = np.zeros(count, np.uint64)
        self.span: NDArray[np.uint64] = np.zeros(count, np.uint64)
        self.parent: NDArray[np.uint64] = np.zeros(count, np.uint64)
        self.ids_good: NDArray[np.bool_] = np.zeros(count, bool)
        self.start_ns: NDArray[np.uint64] = np.zeros(count, np.uint64)
        self.end_ns: NDArray[np.uint64] = np.zeros(count, np.uint64)
        self.kind: NDArray[np.uint8] = np.zeros(count, np.uint8)
        self.failed: NDArray[np.bool_] = np.zeros(count, bool)
        self.name: NDArray[np.intp] = np.zeros(count, np.intp)
        self.names: list[bytes] = []
        self.numbers: dict[str, Floats] = {}
        self.texts: dict[str, list[bytes]] = {}
        self.events: list[tuple[int, bytes, int]] = []
        self._name_index: dict[bytes, int] = {}

    def name_code(self, name: bytes) -> int:
        """The index of a name in `names`."""
        code = self._name_index.get(name)
        if code is None:
            code = self._name_index[name] = len(self.names)
            self.names.append(name)
        return code

    def number_column(self, key: str) -> Floats:
        """The column of a numeric attribute, made at first use."""
        column = self.numbers.get(key)
        if column is None:
            column = self.numbers[key] = np.full(self.count, math.nan)
        return column

    def text_column(self, key: str) -> list[bytes]:
        """The column of a text attribute, made at first use."""
        column = self.texts.get(key)
        if column is None:
            column = self.texts[key] = [b""] * self.count
        return column


class Scope(msgspec.Struct, frozen=True, eq=False):
    """Spans of one instrumentation scope of one resource."""

    resource: dict[str, str]
    scope: str
    spans: SpanColumns


class Export(msgspec.Struct, frozen=True, eq=False):
    """What one body holds, and how many spans and attributes were cut for being too many."""

    scopes: list[Scope]
    cut_spans: int = 0
    cut_attributes: int = 0


Array = NDArray[Any]
