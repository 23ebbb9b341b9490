"""Which ring belongs to which engine, when it is found, and that all its ranks are read as one source."""

import asyncio
import math

import numpy as np
import pytest

from gpuwatch.config import EngineTarget
from gpuwatch.model import STAGES, Subject
from gpuwatch.sources.ring.finished_columns import finished_spans
from gpuwatch.sources.ring.ring_file import RingError
from gpuwatch.sources.ring.rings import EngineRings
from tests.sources.ring_writer import TinyRing
from tests.sources.stub_server import HandClock

URL = "http://127.0.0.1:8000"


class Agent:
    """Polls the rings of one engine, a second apart unless told."""

    def __init__(self, directory, **target):
        self.t = 1010.0
        self.rings = EngineRings(EngineTarget(**{"url": URL, **target}), str(directory), HandClock(self.t))

    def poll(self, passed=1.0):
        self.t += passed
        return asyncio.run(self.rings.poll(self.t))


def seen(batch):
    return sorted(frame.subject.key for frame in batch.frames)


def write(directory, name, port=None, instance=b"i" * 16, **step):
    ring = TinyRing(
        directory / name, info={"model": name, "port": port} if port else {"model": name}, instance=instance
    )
    ring.step(ended_at=1009.0, **step)
    return ring


def test_a_ring_is_found_by_the_engines_name_whatever_else_lies_there(tmp_path):
    write(tmp_path, "other-0.ring", port=8000)
    write(tmp_path, "mine-0.ring", port=9999)
    (tmp_path / "mine-0.ring.prev").write_bytes(b"old")
    (tmp_path / "mine-x.ring").write_bytes(b"no rank")
    batch = Agent(tmp_path, name="mine").poll()
    assert seen(batch) == ["engine/mine/0"]
    assert [i.labels["model"] for i in batch.info] == ["mine-0.ring"]


def test_without_a_name_it_is_found_by_the_port_of_the_url(tmp_path):
    """The default name is host and port, and a plugin calls its engine vllm."""
    write(tmp_path, "vllm-0.ring", port=8000)
    write(tmp_path, "elsewhere-0.ring", port=8001)
    write(tmp_path, "silent-0.ring")
    (tmp_path / "foreign-0.ring").write_bytes(b"no ring at all")
    assert seen(Agent(tmp_path).poll()) == ["engine/127.0.0.1:8000/0"]


def test_the_default_name_is_one_that_a_file_can_have(tmp_path):
    write(tmp_path, "127.0.0.1_8000-0.ring")
    assert seen(Agent(tmp_path).poll()) == ["engine/127.0.0.1:8000/0"]


def test_every_rank_is_a_subject_of_its_own(tmp_path):
    for rank in (0, 1, 12):
        write(tmp_path, f"e-{rank}.ring")
    assert seen(Agent(tmp_path, name="e").poll()) == ["engine/e/0", "engine/e/1", "engine/e/12"]


def test_a_ring_that_appears_later_is_found_within_seconds_and_is_no_error_before(tmp_path):
    """An engine takes minutes to load; the agent beside it is there at once."""
    agent = Agent(tmp_path / "not-there-yet", name="e")
    for _ in range(3):
        assert agent.poll().frames == ()
    assert "no ring" in agent.rings.absent
    (tmp_path / "not-there-yet").mkdir()
    write(tmp_path / "not-there-yet", "e-0.ring")
    assert [len(agent.poll().frames) for _ in range(5)].count(1) == 1
    assert agent.rings.absent == ""


def test_of_two_that_say_the_port_the_newest_is_the_engines(tmp_path):
    """An engine that was called differently in its last life has left a file."""
    old = write(tmp_path, "old-0.ring", port=8000, running=3)
    agent = Agent(tmp_path)
    assert [i.labels["model"] for i in agent.poll().info] == ["old-0.ring"]
    new = write(tmp_path, "new-0.ring", port=8000, instance=b"j" * 16, running=5)
    for ring, born in ((old, 5), (new, 6)):
        ring.put(40, int(born).to_bytes(8, "little"))
    agent.rings._looked_into.clear()
    batch = agent.poll(6.0)
    assert [i.labels["model"] for i in batch.info] == ["new-0.ring"]


def test_a_configured_ring_is_this_engines_whatever_it_is_called_with_its_other_ranks(tmp_path):
    for rank in (0, 1):
        write(tmp_path, f"oddly.named-{rank}.ring")
    write(tmp_path, "e-0.ring")
    agent = Agent(tmp_path / "elsewhere", name="e", ring=str(tmp_path / "oddly.named-0.ring"))
    assert [i.labels["model"] for i in agent.poll().info] == ["oddly.named-0.ring", "oddly.named-1.ring"]


def test_a_configured_ring_that_is_missing_is_a_failed_poll(tmp_path):
    with pytest.raises(RingError, match="No such file"):
        Agent(tmp_path, ring=str(tmp_path / "any.file")).poll()


def test_one_broken_rank_is_counted_and_the_others_are_read(tmp_path):
    write(tmp_path, "e-0.ring")
    (tmp_path / "e-1.ring").write_bytes(b"GWRING01")
    batch = Agent(tmp_path, name="e").poll()
    assert (seen(batch), batch.dropped) == (["engine/e/0"], 1)


def test_an_engine_that_shows_no_requests_is_not_one_without_requests(tmp_path):
    """A request table of no rows says nothing; one of empty rows says that nobody is there."""
    TinyRing(tmp_path / "none-0.ring", rows=0).step(ended_at=1009.0)
    TinyRing(tmp_path / "some-0.ring", rows=4).step(ended_at=1009.0)
    assert Agent(tmp_path, name="none").poll().requests == ()
    (table,) = Agent(tmp_path, name="some").poll().requests
    assert len(table.request) == 0


def test_what_an_engine_cannot_know_is_missing_and_not_zero(tmp_path):
    """Fields that are absent, and fields that are NaN from first to last."""
    fields = ("ended_at", "running", "waiting_fit", "prefill_tokens")
    ring = TinyRing(tmp_path / "e-0.ring", fields=fields)
    ring.step(ended_at=1009.0, running=2, waiting_fit=math.nan, prefill_tokens=math.nan)
    (frame,) = Agent(tmp_path, name="e").poll().frames
    assert frame.names == ("req_running",), "no step_seconds without begun_at, no waiting_fit, no tokens"


def columns(**changed):
    told = {
        "id": 7.0, "finished_at": 1000.0, "e2e_seconds": 4.0, "queue_seconds": 1.0, "prefill_seconds": 0.5,
        "decode_seconds": 2.0, "prompt_tokens": 100.0, "generated_tokens": 30.0, "cached_tokens": 16.0, "reason": 2.0,
    }  # fmt: skip
    return {name: np.array([value]) for name, value in {**told, **changed}.items()}


def stages(spans):
    times = zip(spans.stage.tolist(), spans.start.tolist(), spans.end.tolist(), strict=True)
    return {STAGES[stage]: (start, end) for stage, start, end in times}


def test_a_finished_request_becomes_spans_laid_out_backwards_from_its_end():
    spans = finished_spans(Subject(engine="e"), columns())
    assert stages(spans) == {
        "request": (996.0, 1000.0), "preprocess": (996.0, 996.5), "queue": (996.5, 997.5), "prefill": (997.5, 998.0),
        "decode": (998.0, 1000.0),
    }  # fmt: skip
    assert set(spans.request.tolist()) == {7}
    assert spans.outcome.tolist() == [2, 0, 0, 0, 0]
    assert (spans.prompt_tokens[0], spans.output_tokens[0], spans.cached_tokens[0]) == (100, 30, 16)


@pytest.mark.parametrize(
    ("changed", "shown"),
    [
        ({"prefill_seconds": math.nan, "decode_seconds": 0.0}, {"request"}),
        ({"queue_seconds": math.nan}, {"request", "prefill", "decode"}),
        ({"e2e_seconds": math.nan}, set()),
        ({"e2e_seconds": -4.0}, set()),
        ({"queue_seconds": math.inf, "prefill_seconds": 1e300}, {"request", "decode"}),
        ({"reason": 99.0, "id": -1.0}, {"request", "preprocess", "queue", "prefill", "decode"}),
    ],
)
def test_a_stage_that_is_not_known_or_impossible_is_left_out(changed, shown):
    spans = finished_spans(Subject(engine="e"), columns(**changed))
    assert (set(stages(spans)) if spans else set()) == shown


def test_stages_never_begin_before_the_request():
    """The engine's clock and the front end's disagree a little."""
    spans = finished_spans(Subject(engine="e"), columns(e2e_seconds=3.0))
    assert min(start for start, _ in stages(spans).values()) == 997.0
