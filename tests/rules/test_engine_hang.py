"""Engine hang: requests inside, nothing moves, longer than the work in progress can explain."""

import pytest

from gpuwatch.model import Missing
from gpuwatch.rules.engine_hang import Params, check
from gpuwatch.testing import World, window

BUSY = {"gpu_dram_active_ratio": 0.6, "gpu_tensor_active_ratio": 0.4}
IDLE = {"gpu_dram_active_ratio": 0.0, "gpu_tensor_active_ratio": 0.0, "gpu_util_ratio": 1.0}


def served(world: World, seconds: int = 60, **signals: float) -> World:
    """A minute in which steps of 1,000 prefill tokens take half a second."""
    world.set(step_seconds=0.5, step_prefill_tokens=1000.0, generated_tokens_total=200.0, prompt_tokens_total=2000.0)
    world.run(seconds, req_running=8.0, req_waiting=2.0, steps_total=2.0, **signals)
    return world


def hung(for_s: int, prefill_tokens: float = 0.0, gpu: dict[str, float] | None = None) -> World:
    """Seen through the ring: a step began and does not end."""
    world = served(World(gpu="GPU-1" if gpu else ""), **({} if gpu is None else BUSY))
    world.hang(running=8.0, waiting=2.0, prefill_tokens=prefill_tokens)
    world.run(for_s, **(gpu or {}))
    return world


def frozen(for_s: int, gpu: dict[str, float] | None = None, **signals: float) -> World:
    """Seen through a page: gauges hold their last good values, counters stand."""
    world = served(World(sees="page", gpu="GPU-1" if gpu else ""), **({} if gpu is None else BUSY))
    world.set(step_seconds=None, step_prefill_tokens=None)
    still = {"generated_tokens_total": 0.0, "steps_total": 0.0, "prompt_tokens_total": 0.0}
    world.run(for_s, **still, **signals, **(gpu or {}))
    return world


def ask(world: World):
    return check(world.window(), Params())


@pytest.mark.parametrize(
    ("world", "confidence", "proven"),
    [
        (lambda: hung(11), 0.6, False),
        (lambda: hung(65), 0.95, True),
        (lambda: hung(12, gpu=IDLE), 0.95, True),
        (lambda: frozen(13), 0.6, False),
        (lambda: frozen(70), 0.95, True),
        (lambda: frozen(13, gpu=IDLE), 0.95, True),
        (lambda: frozen(13, gpu=BUSY), 0.5, False),
    ],
    ids=[
        "ring, suspicion", "ring, a minute", "ring and an idle device", "page, suspicion", "page, a minute",
        "page and an idle device", "page and a busy device",
    ],
)  # fmt: skip
def test_fires(world, confidence, proven):
    """Certainty comes from time or from a second witness, never from one look."""
    found = ask(world())
    assert found.confidence == pytest.approx(confidence)
    assert bool(found.proof) == proven


@pytest.mark.parametrize(
    "world",
    [
        lambda: hung(8),
        lambda: hung(25, prefill_tokens=30_000),
        lambda: hung(25, prefill_tokens=30_000, gpu=BUSY),
        lambda: frozen(40, req_running=0.0, req_waiting=0.0),
        lambda: served(World()),
        lambda: served(World(sees="page")),
    ],
    ids=[
        "eight seconds",
        "a long prefill",
        "a long prefill on a busy device",
        "idle",
        "served (ring)",
        "served (page)",
    ],
)
def test_stays_silent(world):
    assert ask(world()) is None


def test_a_planned_prefill_buys_three_times_its_usual_time_and_no_more():
    """30,000 tokens at 1,000 in half a second: 15 s are usual, 45 s are excused, after that nothing is."""
    assert ask(hung(40, prefill_tokens=30_000)) is None
    found = ask(hung(62, prefill_tokens=30_000))
    assert found.proof
    shown = {e.signal: e.observed for e in found.evidence}
    assert shown["step predicted to take (seconds)"] == pytest.approx(15.5, rel=0.1)
    assert shown["longest step so far (seconds)"] == pytest.approx(0.5)


def test_a_long_prefill_on_a_device_that_does_no_work_is_no_prefill():
    assert ask(hung(15, prefill_tokens=30_000, gpu=IDLE)).proof


def test_the_onset_is_when_the_step_began():
    world = hung(30)
    assert ask(world).onset_at == pytest.approx(world.now - 30, abs=0.1)


def test_tokens_that_flow_again_end_it():
    world = hung(30)
    world.resume()
    world.run(5)
    assert ask(world) is None


def test_it_is_blind_where_nothing_that_must_move_is_shown():
    with pytest.raises(Missing, match="must move"):
        check(window(req_running=[3.0] * 60, req_waiting=[1.0] * 60), Params())
