"""What to do about each class: the rule's own advice where the class has a rule, else what is written down here.

The table is remedies.toml beside this file: one entry a class, `mechanism` where an advice is for one form of it only.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import msgspec

from ..incidents.unknown import UNKNOWN
from ..model import ActionKind, Advice
from ..rules import load_rules


class Remedy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The typed first action, what to do, and what would make it worse."""

    action: ActionKind
    advice: tuple[Advice, ...]
    not_now: tuple[str, ...] = ()


@cache
def written() -> dict[str, Remedy]:
    """The table, by class. A mistake in it fails every test that loads it."""
    text = (Path(__file__).parent / "remedies.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Remedy])


def remedy(rule: str, mechanism: str) -> Remedy:
    """For a class and its mechanism. A restart on one witness is no first action: it becomes a look."""
    known = UNKNOWN if rule == "unknown" else load_rules().get(rule)
    if known is not None:
        action: ActionKind = "observe" if known.action in ("restart", "drain_replica", "cordon_node") else known.action
        found = Remedy(action, known.advice, known.not_now)
    else:
        found = written().get(rule, Remedy("observe", ()))
    return Remedy(found.action, tuple(a for a in found.advice if a.mechanism in ("", mechanism)), found.not_now)
