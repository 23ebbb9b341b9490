"""What a finished request's stages say: its first wait, and its spans as (name, start, end). Unix seconds."""

from __future__ import annotations

from ..request import Request, Stage

STAGE_NAMES = {
    Stage.RECEIVED: "preprocess",  # only where the front end keeps a request for a while
    Stage.QUEUE: "queue",
    Stage.PREFILL: "prefill",
    Stage.DECODE: "decode",
    Stage.REQUEUE: "requeue",
    Stage.TRANSFER: "transfer",
}


def first_wait(request: Request) -> tuple[float, float]:
    """Seconds of the first wait, and when the first prefill began (the end of that wait)."""
    for stage, start, end in request.stages:
        if stage == Stage.QUEUE:
            return end - start, end
    return 0.0, request.arrived_at


def stage_spans(request: Request) -> list[tuple[str, float, float]]:
    """The request's stages by their public names, in order."""
    return [(STAGE_NAMES[stage], start, end) for stage, start, end in request.stages if stage in STAGE_NAMES]
