"""Spans of one request in several exports: nothing is lost for the order in which they came, nothing waits forever."""

import itertools

import numpy as np
import pytest

from engine_shim.request import Request, Stage
from engine_shim.telemetry.otlp_wire import OtlpEncoder
from gpuwatch.memory.requests import FinishedRequests
from gpuwatch.model import OUTCOMES, STAGES, Spans, Subject
from gpuwatch.sources.spans import trees as span_trees
from gpuwatch.sources.spans.inbox import SpanInbox
from gpuwatch.sources.spans.stages import painted
from gpuwatch.sources.spans.subjects import SpanSubjects
from gpuwatch.sources.spans.trees import Root, Slice, SpanTrees
from tests.spans.exports import PROTO, SUBJECT, T0, Trace, decoder, requests, stages, taken

HASH = 0xABCDEF


def shim_export():
    request = Request("r1", 40, 20, float(T0), 20, cached_tokens=16, output_tokens=20)
    request.stages = [
        (Stage.QUEUE, T0, T0 + 1.0), (Stage.PREFILL, T0 + 1.0, T0 + 1.5), (Stage.DECODE, T0 + 1.5, T0 + 2.0),
        (Stage.REQUEUE, T0 + 2.0, T0 + 3.0), (Stage.PREFILL, T0 + 3.0, T0 + 3.5), (Stage.DECODE, T0 + 3.5, T0 + 4.0),
    ]  # fmt: skip
    request.finished_at, request.first_token_at, request.last_token_at = T0 + 4.0, T0 + 1.5, T0 + 4.0
    request.finish_reason = "length"
    trace = Trace("engine_shim")
    trace.message.ParseFromString(OtlpEncoder("shim", "0.1.0", 0, "tiny").encode([(request, HASH)]))
    trace.scope = trace.message.resource_spans[0].scope_spans[0]
    return trace


WHOLE = [
    ("request", 0, 4.0), ("queue", 0, 1.0), ("prefill", 1.0, 1.5), ("decode", 1.5, 2.0), ("requeue", 2.0, 3.0),
    ("prefill", 3.0, 3.5), ("decode", 3.5, 4.0),
]  # fmt: skip


@pytest.mark.parametrize("cut", [0, 1, 2, 4, 6])
@pytest.mark.parametrize("late_first", [False, True])
@pytest.mark.parametrize("every_s", [0.5, 4.0], ids=["soon", "after-the-wait"])
def test_the_bundled_engines_stages_are_whole_wherever_its_exports_are_cut(cut, late_first, every_s):
    trace = shim_export()
    names = [span.span_id for span in trace.scope.spans][: cut + 1]
    late = trace.take_out(lambda span: span.span_id in names)
    bodies = (late.body, trace.body) if late_first else (trace.body, late.body)
    found = taken(*bodies, every_s=every_s)
    expected = [row for row in WHOLE if row[0] != "postprocess"]
    if cut == 0 and late_first and every_s > span_trees.QUIET_S:  # the root was told by its attributes before they came
        assert stages(found)[0] == WHOLE[0]
    else:
        assert stages(found) == expected
    assert requests(found) == {HASH}


def test_a_tree_without_a_root_is_told_after_ten_seconds():
    trace = shim_export()
    trace.take_out(lambda span: span.name == "llm_request")
    inbox = SpanInbox(SUBJECT)
    inbox.put(decoder().decode(trace.body, PROTO))
    assert [len(inbox.take(T0 + i).spans) for i in (1.0, 5.0, 10.9)] == [0, 0, 0]
    assert [row[0] for row in stages(inbox.take(T0 + 11.1).spans)] == [row[0] for row in WHOLE[1:]]


def root(trace, span=1, **kwargs):
    return Root(trace, span, Subject(engine="e"), trace, T0, T0 + 1.0, (1.0, 2.0, 3.0), 1, **kwargs)


def slice_(trace, span, parent, stage="decode"):
    return Slice(trace, span, parent, Subject(engine="e"), 99, stage, T0, T0 + 1.0, b"x")


def test_what_is_held_is_bounded(monkeypatch):
    """The oldest trees are told as they are when there are too many spans."""
    monkeypatch.setattr(span_trees, "MOST_SPANS", 100)
    trees = SpanTrees()
    for trace in range(1, 61):
        trees.add([slice_(trace, 2, 1), slice_(trace, 3, 1)], T0)
    told = trees.take(T0)
    assert sum(len(s.start) for s in told) == 20
    assert trees.held == 100
    assert sum(len(s.start) for s in trees.take(T0 + 20)) == 100
    assert trees.held == 0


def test_parents_in_a_circle_and_endless_chains_are_no_requests():
    trees = SpanTrees()
    trees.add([slice_(1, 2, 3), slice_(1, 3, 2), *(slice_(2, i, i + 1) for i in range(10, 500)), slice_(3, 7, 7)], T0)
    assert sum(len(s.start) for s in trees.take(T0 + 20)) == 2 + 490 + 1


def test_roots_are_forgotten_after_half_a_minute(monkeypatch):
    monkeypatch.setattr(span_trees, "MOST_REMEMBERED", 10)
    trees = SpanTrees()
    trees.remember([root(trace) for trace in range(1, 100)], T0)
    trees.take(T0)
    assert len(trees._told) == 10
    trees.take(T0 + 31)
    assert len(trees._told) == 0


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_painting_does_not_depend_on_the_order(order):
    slices = [("decode", 1.0, 5.0), ("prefill", 0.5, 1.0), ("queue", 0.0, 0.5)]
    shown = painted([slices[i] for i in order], [2.0], 5.0)
    assert shown == [("queue", 0.0, 0.5), ("prefill", 0.5, 1.0), ("decode", 1.0, 2.0), ("requeue", 2.0, 5.0)]


def rows(request, *stages_, tokens=5.0):
    names, starts, ends = zip(*stages_, strict=True)
    n = len(names)
    return Spans(
        Subject(engine="e"), "spans", np.full(n, request, np.uint64),
        np.array([STAGES.index(name) for name in names], np.uint8), np.array(starts, float), np.array(ends, float),
        np.full(n, 10.0), np.full(n, tokens), np.full(n, np.nan), np.full(n, OUTCOMES.index("stop"), np.uint8),
    )  # fmt: skip


ALL = (("request", 0, 4), ("queue", 0, 1), ("prefill", 1, 2), ("decode", 2, 4))


def table(*batches):
    log = FinishedRequests()
    for at, spans in batches:
        log.add(spans, at)
        log.forget(at)
    window = log.window(-1, 100)
    return {name: str(column.tolist()) for name, column in window.items()}, log


@pytest.mark.parametrize("late", [1, 2, 3])
def test_stages_that_come_after_their_request_was_counted_are_added_to_its_row(late):
    """As in a capture, whose rows come as they were recorded."""
    together, one = table((5.0, rows(1, *ALL)))
    in_two, other = table((5.0, rows(1, *ALL[:late])), (6.0, rows(1, *ALL[late:])))
    assert in_two == together
    assert sorted(map(str, sum_of(one))) == sorted(map(str, sum_of(other)))


def sum_of(log):
    """What of each objective was counted."""
    fresh = log.take_fresh()
    return [[f[i] for f in fresh if f[i] == f[i]] for i in (0, 1)]


def test_an_export_that_comes_twice_is_counted_once():
    once, _ = table((5.0, rows(1, *ALL)))
    twice, log = table((5.0, rows(1, *ALL)), (6.0, rows(1, *ALL)))
    assert (twice, log.late) == (once, 4)


def test_a_late_stage_that_does_not_fit_its_request_is_dropped_and_counted():
    once, _ = table((5.0, rows(1, *ALL)))
    more, log = table((5.0, rows(1, *ALL)), (6.0, rows(1, ("decode", 2, 4), ("queue", -5, -4), ("prefill", 3, 9))))
    assert (more, log.late) == (once, 3)


class Target:
    def __init__(self, name, url="", spans=None):
        self.name, self.url, self.spans = name, url, spans or {}


POOL = [
    Target("a", "http://10.0.0.1:8000"), Target("b", "http://vllm-b.ns:8000/metrics"),
    Target("c", "http://10.0.0.3:80", {"k8s.pod.name": "pod-c", "deployment.environment": "prod"}),
    Target("d", "http://10.0.0.1:8001"), Target("e"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("resource", "engine", "named"),
    [
        ({"service.name": "a"}, "a", True),
        ({"service.instance.id": "b", "service.name": "a"}, "a", True),
        ({"k8s.pod.name": "pod-c", "deployment.environment": "prod", "service.name": "vllm"}, "c", True),
        ({"k8s.pod.name": "pod-c"}, "pod-c", False),
        ({"server.address": "10.0.0.1", "server.port": "8001"}, "d", True),
        ({"service.instance.id": "10.0.0.1:8000"}, "a", True),
        ({"host.name": "vllm-b.ns"}, "b", True),
        ({"host.name": "10.0.0.1"}, "10.0.0.1", False),
        ({"service.name": "x" * 500}, "x" * 64, False),
        ({}, "unknown", False),
    ],
)
def test_resources_mean_engines_as_configured_by_name_or_by_address(resource, engine, named):
    subjects = SpanSubjects(POOL)
    assert subjects.subject_of(resource).engine == engine
    assert subjects.is_named(resource) is named
    assert subjects.attributes == ("deployment.environment", "k8s.pod.name")


def test_a_lone_engine_is_meant_by_all_and_ranks_are_told():
    subjects = SpanSubjects([Target("only", "http://x:1")])
    assert subjects.subject_of({"service.name": "vllm", "dp_rank": "3"}) == Subject(engine="only", rank=3)
    assert subjects.subject_of({"shim.rank": "-1"}) == Subject(engine="only", rank=0)
