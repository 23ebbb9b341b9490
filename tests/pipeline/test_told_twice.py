"""A request that tracing and a step ring both tell of is one request."""

import math

import numpy as np

from gpuwatch.memory.history import TRACED_S, History
from gpuwatch.model import STAGES, Batch, Spans, Subject

ENGINE = Subject(engine="e")
T = 1_764_000_000.0


def told(history, role, at, ids):
    """Whole requests that ended a second before `at`, from one source; ids of two sources never meet."""
    n = len(ids)
    spans = Spans(
        ENGINE, role, np.array(ids, np.uint64), np.full(n, STAGES.index("request"), np.uint8), np.full(n, at - 3.0),
        np.full(n, at - 1.0), np.full(n, 100.0), np.full(n, 20.0), np.full(n, math.nan), np.ones(n, np.uint8),
    )  # fmt: skip
    history.ingest(Batch(role, role, ENGINE, at, spans=(spans,)))


def test_the_ring_alone_is_believed():
    history = History(ENGINE)
    told(history, "steps", T, [1, 2])
    assert history.finished.rows == 2


def test_while_the_engine_is_traced_its_ring_says_nothing_new_of_requests():
    """Spans know the time to the first token, which a ring does not."""
    history = History(ENGINE)
    told(history, "spans", T, [1, 2])
    told(history, "steps", T + 1, [11, 12])
    assert history.finished.rows == 2


def test_when_tracing_ends_the_ring_is_heard_again():
    history = History(ENGINE)
    told(history, "spans", T, [1])
    told(history, "steps", T + TRACED_S, [11])
    assert history.finished.rows == 2
