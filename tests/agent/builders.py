"""Things to record and to tell: batches as sources bring them, incidents as the pipeline opens them."""

import msgspec
import numpy as np

from gpuwatch.model import Advice, Batch, Frame, Impact, Incident, Subject, Transition

ENGINE = Subject(engine="shim")
START = 1_764_000_000.0


def page_batch(at: float, running: float = 3.0, waiting: float = 0.0, **extra: object) -> Batch:
    """One look at an engine's page."""
    frame = Frame(
        ENGINE, "page", ("req_running", "req_waiting", "kv_usage_ratio"),
        np.array([at]), np.array([[running, waiting, 0.25]]),
    )  # fmt: skip
    return Batch("page:shim", "engine", ENGINE, at, took_s=0.002, frames=(frame,), **extra)  # type: ignore[arg-type]


def incident(id: str = "1a2b", **changes: object) -> Incident:
    """An open incident that pages."""
    base = Incident(
        id=id, rule="batch_thrashing", family="kv_admission", severity="page", confidence=0.9,
        subject={"engine": "shim", "rank": 0}, scope={"cluster": "c1"}, status="open", onset_at=START,
        detected_at=START + 30, resolved_at=None, summary="the batch drains and refills", mechanism="head_admission",
        trigger=None, impact=Impact("ttft_p95"), evidence=(), ruled_out=(), alternatives=(), culprits=(), changes=(),
        action="limit_client", advice=(Advice("hold long prompts back at the gateway"),),
        not_now=("raise max_num_seqs",), symptoms=(), links={},
    )  # fmt: skip
    return msgspec.structs.replace(base, **changes)


def opened(id: str = "1a2b", at: float = START + 30, **changes: object) -> Transition:
    """The incident opens."""
    return Transition("opened", at, incident(id, **changes))


def resolved(id: str = "1a2b", at: float = START + 300, **changes: object) -> Transition:
    """The incident ends."""
    return Transition("resolved", at, incident(id, status="resolved", resolved_at=at, **changes))
