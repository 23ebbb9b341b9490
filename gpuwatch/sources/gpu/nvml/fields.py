"""NVML's numbered fields: many values of a device in one call, each with an answer of its own.

A field that a device refuses is not asked again. Counters become rates by difference: one that falls (driver reload,
wrap) begins anew and says nothing for that interval. Ids follow nvml.h.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from ...growth import Growth
from .library import CLOSED, GONE, INVALID_ARGUMENT, REFUSALS, Library, NvmlError

ALL_LINKS = 0xFFFFFFFF
KIB = 1024.0

_ANSWER = struct.Struct("IIqqii8s")
"""nvmlFieldValue_t of nvml.h: id, scope, time, latency, type, nvmlReturn, value."""
_UNION = tuple(struct.Struct(form) for form in ("d", "I", "L", "Q", "q", "i", "H"))
"""How the value is packed, by nvmlValueType_t."""
_BLANKS = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
"""All bits set: NVML's "not available"."""


class Field(msgspec.Struct, frozen=True):
    """One field: `name` is a signal, or what something is computed from. `rate`: the counter's growth per second."""

    id: int
    name: str
    factor: float = 1.0
    rate: bool = False
    scope: int = 0


def number(raw: Any, factor: float = 1.0) -> float:
    """A raw integer in base units; NaN for "not available"."""
    return math.nan if raw in _BLANKS else raw * factor


class FieldReader:
    """Reads some fields of one device."""

    def __init__(self, library: Library, fields: Sequence[Field]) -> None:
        self._library = library
        self._ask: list[Field] = []
        self._ids: list[Any] = []
        self._growth = {field.name: Growth() for field in fields if field.rate}
        self.refused: dict[str, int] = {}
        self._keep(list(fields))

    @property
    def asks(self) -> bool:
        """Whether the device still answers any of them."""
        return bool(self._ask)

    def read(self, handle: Any, at: float) -> dict[str, float]:
        """What the device says now, by name. Raises NvmlError when the whole call fails for another reason than refusal."""
        if not self._ask:
            return {}
        try:
            answers = self._library.ask("nvmlDeviceGetFieldValues", handle, self._ids)
        except NvmlError as error:
            if error.code not in REFUSALS:
                raise
            self._refuse(dict.fromkeys((field.name for field in self._ask), error.code))
            return {}
        values: dict[str, float] = {}
        refused: dict[str, int] = {}
        for field, (_, _, _, _, kind, code, packed) in zip(self._ask, _ANSWER.iter_unpack(answers), strict=False):
            if code in GONE or code in CLOSED:
                raise NvmlError("nvmlDeviceGetFieldValues", code)
            if code in REFUSALS or code == INVALID_ARGUMENT:
                refused[field.name] = code
            elif code == 0:
                value = self._value(field, kind, packed, at)
                if value == value:
                    values[field.name] = value
        if refused:
            self._refuse(refused)
        return values

    def _value(self, field: Field, kind: int, packed: bytes, at: float) -> float:
        if not 0 <= kind < len(_UNION):
            return math.nan
        value = number(_UNION[kind].unpack_from(packed)[0], field.factor)
        return self._growth[field.name].per_second(value, at) if field.rate else value

    def _refuse(self, refused: dict[str, int]) -> None:
        self.refused |= refused
        self._keep([field for field in self._ask if field.name not in refused])

    def _keep(self, fields: list[Field]) -> None:
        self._ask = fields
        self._ids = [(field.id, field.scope) if field.scope else field.id for field in fields]
