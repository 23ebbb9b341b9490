"""Who is held up by more than KV, on the engine's page: requests that wait for an adapter or a grammar, and stalled ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..request import Request
from .exposition import Family, single

if TYPE_CHECKING:
    from ..engine.engine import Engine
    from . import EngineTelemetry

Held = Callable[[], Sequence[Request]]


def held_up_families(deferred: Held, stalled: Held) -> list[Family]:
    """One family for each."""
    return [
        single(
            "shim:requests_deferred", "gauge", "Requests that wait for an adapter or a grammar, and not for KV.",
            lambda: len(deferred()),
        ),
        single(
            "shim:requests_stalled", "gauge", "Requests that hold KV and get no tokens, as their clients do not read.",
            lambda: len(stalled()),
        ),
    ]  # fmt: skip


def show_held_up(telemetry: EngineTelemetry, engine: Engine) -> None:
    """Show them where the engine's scheduler knows of any (faults/scheduler.py)."""
    if hasattr(engine.scheduler, "deferred"):
        telemetry.live.deferred = lambda: len(engine.scheduler.deferred)
        telemetry.add_families(held_up_families(lambda: engine.scheduler.deferred, lambda: engine.scheduler.stalled))
