"""Advice as rows: what to do, by which knob, how soon it works, its price, its proof and the way back."""

from __future__ import annotations

import msgspec

from ..model import Incident
from .words import duration

_APPLIES = {
    "runtime": "at run time, no restart",
    "restart": "needs a restart",
    "redeploy": "needs a redeployment",
}


class AdviceRow(msgspec.Struct, frozen=True):
    """One thing to do, as text; empty strings were not said. `now` when it needs no restart."""

    do: str
    now: bool
    facts: tuple[tuple[str, str], ...]


def advice_rows(incident: Incident | None) -> tuple[AdviceRow, ...]:
    """The advice in the order in which the rule gives it."""
    if incident is None:
        return ()
    rows = []
    for a in incident.advice:
        works = _APPLIES[a.applies] + (f", about {duration(a.takes_s)}" if a.takes_s else "")
        facts = (("Knob", a.knob), ("Works", works), ("Costs", a.costs), ("Verify", a.verify), ("Undo", a.undo))
        rows.append(AdviceRow(a.do, a.applies == "runtime", tuple((k, v) for k, v in facts if v)))
    return tuple(rows)
