"""What the doctor finds of the machine: what of each engine's processes and container cannot be seen, why, and the cure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec


class Unseen(msgspec.Struct, frozen=True):
    """One thing that is not seen. `subject` is the engine or machine."""

    subject: str
    what: str
    why: str
    cure: str


class HostLook(msgspec.Struct, frozen=True):
    """`seen`: subjects that are looked at. `unseen`: what of them is not seen."""

    seen: list[str] = []
    unseen: list[Unseen] = []


def look_at(sources: Iterable[Any]) -> HostLook:
    """Ask the machine's sources what they cannot see."""
    seen, unseen = [], []
    for source in sources:
        if source.role != "host":
            continue
        missing = getattr(source, "unseen", ())
        if not getattr(source, "absent", ""):
            seen.append(source.subject.key)
        unseen += [Unseen(source.subject.key, one.what, one.why, one.cure) for one in missing]
    return HostLook(seen, unseen)


def lines(look: HostLook) -> list[str]:
    """The same for people; nothing where the machine is not looked at."""
    if not (look.seen or look.unseen):
        return []
    told = ["", "machine"]
    told += [f"  ok  {subject}" for subject in look.seen]
    for one in look.unseen:
        told.append(f"  --  {one.subject}: {one.what} cannot be seen: {one.why}")
        told.append(f"      {one.cure}")
    return told
