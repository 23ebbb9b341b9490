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


def recognise(names: AbstractSet[str], only: str = "auto") -> list[tuple[Dialect, str]]:
    """Dialects with their prefixes that speak on a page with these sample names, the engine of the page first.

    A front end or a worker's system page that repeats an engine's names is that engine; of several engines on one page
    the one with the most names of its own comes first. `only` asks for one; KeyError for an unknown one.
    """
    dialects = all_dialects()
    found = [
        (dialect, prefix)
        for dialect in (dialects.values() if only == "auto" else (dialects[only],))
        if (prefix := dialect.prefix_on(names)) is not None
    ]
    if len(found) > 1:
        found.sort(key=lambda one: (one[0].yields, -len(names & one[0].sample_names(one[1]))))
    return found


def detect(names: AbstractSet[str], only: str = "auto") -> tuple[Dialect, str] | None:
    """The dialect and prefix of a page with these sample names; None for nobody's page."""
    found = recognise(names, only)
    return found[0] if found else None
