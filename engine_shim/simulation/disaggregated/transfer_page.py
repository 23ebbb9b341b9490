"""What engines of which prefill and decode are apart show of the KV that moves between them.

A slow network and a full decode pool look alike from outside; here they differ. Requests that wait for the decode
engine's blocks are in its `num_requests_waiting`; those that have blocks and wait for their KV are here, with the bytes
that came and how long each transfer took once its turn had come. The prefill engine shows whose KV it still keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...telemetry.exposition import Family, histogram, single

if TYPE_CHECKING:
    from .link import TransferLink


def prefill_families(kept: Callable[[], int]) -> list[Family]:
    """Of a prefill engine. `kept` says for how many requests it keeps KV."""
    return [
        single(
            "shim:kv_kept_requests", "gauge", "Requests whose prompt is computed and whose KV nobody has fetched.", kept
        )
    ]


def decode_families(link: TransferLink, now: Callable[[], float]) -> list[Family]:
    """Of a decode engine with the link that brings its KV."""

    def arrived_bytes() -> float:
        link.settle(now())
        return link.bytes

    return [
        single(
            "shim:kv_transfer_requests", "gauge",
            "Requests with blocks here whose KV has not arrived.", lambda: link.under_way(now()),
        ),
        single(
            "shim:kv_transfer_queued_requests", "gauge",
            "Of them, those whose turn on the link has not come.", lambda: link.queued(now()),
        ),
        single("shim:kv_transfer_bytes_total", "counter", "Bytes of KV that have arrived.", arrived_bytes),
        histogram(
            "shim:kv_transfer_seconds", "Time of a transfer from its turn on the link to its arrival.", link.seconds
        ),
    ]  # fmt: skip
