"""The incident classes: one file per class, found by walking this folder for a constant `RULE`.

A rule module has its mechanism, blind spots and neighbours in the docstring, a frozen `Params` (defaults with units and
reasons), `check(window, params)` that returns a Finding or None, and `RULE`. A question that the data cannot answer
raises Missing inside `check`; the pipeline then marks the rule blind for that subject.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from ..model import ActionKind, Advice, Family, Finding, Severity

if TYPE_CHECKING:
    from ..memory.view import Window

Check = Callable[["Window", Any], Finding | None]


class Rule(msgspec.Struct, frozen=True):
    """One incident class and all that the world is told about it.

    `for_s`: how long the finding must hold before an incident opens; `resolve_s`: how long it must be absent before one
    is resolved. `severity` caps what harm may raise it to. `needs` names the signals without which it is blind,
    `opens_eyes` the one change that would cure that. `explains` lists classes that are its symptoms, in which case they
    are nested, not paged. `tell_apart` lists its neighbours.
    """

    stem: str
    family: Family
    title: str
    check: Check
    params: type[msgspec.Struct]
    needs: tuple[str, ...]
    opens_eyes: str
    for_s: float
    resolve_s: float
    severity: Severity
    action: ActionKind
    advice: tuple[Advice, ...]
    not_now: tuple[str, ...]
    explains: tuple[str, ...] = ()
    tell_apart: tuple[str, ...] = ()

    @property
    def alert_name(self) -> str:
        """The stem in CamelCase with the project's prefix: the name of its Prometheus alert."""
        return "Gpuwatch" + "".join(word.capitalize() for word in self.stem.split("_"))


@cache
def load_rules() -> dict[str, Rule]:
    """Every rule of this package by stem, in alphabetical order. The stem must be the module's name (ValueError)."""
    found: dict[str, Rule] = {}
    for module_info in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        rule = getattr(module, "RULE", None)
        if rule is None:
            continue
        if rule.stem != module_info.name:
            raise ValueError(f"{module.__file__}: RULE.stem is {rule.stem!r}, the file says {module_info.name!r}")
        found[rule.stem] = rule
    return found
