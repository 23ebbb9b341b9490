"""An engine that hangs before the scheduler takes a request looks idle on its page; its front end's descriptors do not."""

import pytest

from gpuwatch.diagnose.host_page import HostPage
from gpuwatch.model import Subject
from tests.clues.looks import Evidence, first, named


def watched(rise_per_look: float, tokens_per_look: float = 0.0, running: float = 0.0, served: bool = True) -> Evidence:
    """Thirty seconds of service, then a minute of what is asked for; a look every five seconds."""
    evidence, tokens, held = Evidence(), 0.0, 33.0
    for n in range(19):
        busy = n < 6
        tokens += (200.0 if served else 0.0) if busy else tokens_per_look
        held += 0 if busy else rise_per_look
        evidence.look(
            5 * n, req_running=2.0 if busy and served else running, req_waiting=0.0, kv_usage_ratio=0.0,
            generated_tokens_total=tokens, steps_total=tokens, process_open_files=held,
        )  # fmt: skip
    return evidence


def test_connections_that_pile_up_while_nothing_moves_are_a_hang_that_no_gauge_shows():
    found = first(watched(rise_per_look=8))
    assert (found.rule, found.mechanism, found.severity) == ("engine_hang", "unadmitted", "page")
    assert found.confidence == 0.55
    assert first(watched(rise_per_look=8).say(80, "broadcast_block_wait", seconds=60)).confidence == 0.7


@pytest.mark.parametrize(
    "what", [{"rise_per_look": 0}, {"rise_per_look": 0.5}, {"rise_per_look": 8, "tokens_per_look": 50.0, "running": 2.0},
             {"rise_per_look": 8, "served": False}],
    ids=["idle", "a probe or two", "tokens flow", "it never served"],
)  # fmt: skip
def test_stays_silent(what):
    assert named(watched(**what)) == []


def test_a_worker_that_takes_no_work_after_it_had_served_hangs_and_does_not_compile():
    evidence = Evidence().say(0, "compiled", seconds=30).line(10, gen=90.0, running=2).line(20, gen=80.0, running=2)
    found = first(evidence.say(90, "broadcast_block_wait", seconds=60))
    assert (found.rule, found.mechanism, found.severity) == ("engine_hang", "worker_waits", "page")
    cold = first(Evidence().say(0, "compiled", seconds=30).say(90, "broadcast_block_wait", seconds=60))
    assert cold.rule == "unknown"


def test_a_page_of_the_engine_tells_how_many_descriptors_its_front_end_has_open():
    page = HostPage(Subject(host="h"), Subject(engine="e"))
    (frame,) = page.read(b"process_open_fds 177.0\n", 1.0, of_engine=True)
    assert (frame.subject.engine, frame.names, frame.values.tolist()) == ("e", ("process_open_files",), [[177.0]])
    assert page.read(b"process_open_fds 177.0\n", 2.0, of_engine=False) == (), "whose they are is not known"
