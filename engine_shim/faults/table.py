"""Faults from tables of numbers: a scenario's [[fault]], `--fault kind:key=number,…`, the admin route's JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from .interval import FOREVER
from .kinds import KINDS, Key, Kind

Fault = Any  # one of the dataclasses that KINDS builds


def fault_from_table(table: Mapping[str, Any], start: float) -> Fault:
    """From a table whose times are seconds after the clock time `start`; docs/faults.md lists kinds and keys.

    ValueError names the key that is wrong.
    """
    name = table.get("kind")
    if name not in KINDS:
        near = get_close_matches(str(name), KINDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {name!r}{hint}")
    kind = KINDS[name]
    keys = _keys(kind)
    for key in table:
        if key != "kind" and key not in keys:
            raise ValueError(f"unknown key {key!r} for a {name}; it has {', '.join(keys)}")
    for key, spec in keys.items():
        if spec.default is None and key not in table:
            raise ValueError(f"key {key!r} is missing for a {name}")
    values = {key: _number(spec, table[key]) if key in table else spec.default for key, spec in keys.items()}
    at_s, until_s = values.pop("at_s"), values.pop("until_s", FOREVER)
    if until_s <= at_s:
        raise ValueError(f"until_s ({until_s:g}) must come after at_s ({at_s:g})")
    return kind.build(name, start + at_s, start + until_s, values)


def _keys(kind: Kind) -> dict[str, Key]:
    """All keys of a kind, times first."""
    times = [Key("at_s")]
    if kind.lasts != "never":
        times.append(Key("until_s", None if kind.lasts == "needed" else FOREVER))
    return {key.name: key for key in (*times, *kind.keys)}


def _number(key: Key, value: Any) -> float | int:
    if isinstance(value, bool) and key.whole and key.high == 1:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < key.low:
        raise ValueError(f"{key.name} must be a number of at least {key.low:g}, not {value!r}")
    if key.above and value == key.low:
        raise ValueError(f"{key.name} must be above {key.low:g}")
    if value > key.high:
        raise ValueError(f"{key.name} must be at most {key.high:g}, not {value!r}")
    if key.whole:
        if value != int(value):
            raise ValueError(f"{key.name} must be a whole number, not {value!r}")
        return int(value)
    return value
