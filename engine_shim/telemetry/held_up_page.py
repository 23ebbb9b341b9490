"""Who is held up by more than KV, on the engine's page: requests that wait for an adapter or a grammar, and stalled ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..request import Request
from .exposition import Family, single

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
