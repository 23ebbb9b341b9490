"""Dialects: canonical signal → an engine's names, one data file an engine, found by its constant `DIALECT`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Set as AbstractSet
from functools import cache

from .dialect import Dialect


@cache
def all_dialects() -> dict[str, Dialect]:
    """Every dialect by name: the modules of this package that have a constant `DIALECT`."""
    found: dict[str, Dialect] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        dialect = getattr(importlib.import_module(f"{__name__}.{module}"), "DIALECT", None)
        if isinstance(dialect, Dialect):
            found[dialect.name] = dialect
    return found


@cache
def sentinel_names() -> frozenset[str]:
    """Every sample name that identifies some engine."""
    return frozenset(
        prefix + name for dialect in all_dialects().values() for prefix in dialect.prefixes for name in dialect.detect
    )


def detect(names: AbstractSet[str], only: str = "auto") -> tuple[Dialect, str] | None:
    """The dialect and prefix of a page with these sample names. `only` asks for one; KeyError for an unknown one."""
    dialects = all_dialects()
    for dialect in dialects.values() if only == "auto" else (dialects[only],):
        prefix = dialect.prefix_on(names)
        if prefix is not None:
            return dialect, prefix
    return None
