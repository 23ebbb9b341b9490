"""The five questions on written-down seconds and on toy worlds: the answer, and when none is given."""

import math

import numpy as np
import pytest

from gpuwatch.config import Maintenance, Slo
from gpuwatch.model import Missing
from gpuwatch.questions.demand import fit, flow, load_factors, long_share, surge, surge_at
from gpuwatch.questions.gpu import gpu
from gpuwatch.questions.latency import felt, late_waiting, latency, shares
from gpuwatch.questions.lifecycle import lifecycle
from gpuwatch.questions.moved import length_shift, moved, trigger
from gpuwatch.questions.progress import device_witness, stall
from gpuwatch.questions.queue import began_at, queue
from gpuwatch.questions.rhythm import is_periodic, rhythm
from gpuwatch.questions.rhythm import state as rhythm_state
from gpuwatch.testing import START, InFlight, ToyEngine, World, window

rng = np.random.default_rng(3)


def saw(
    period_s: float, seconds: float = 300, full: float = 40.0, swing: float = 0.8, jitter: float = 0.0
) -> np.ndarray:
    """A running set that drains slowly and refills at once."""
    out: list[float] = [full] * 60
    while len(out) < seconds:
        n = max(6, round(period_s * (1 + jitter * rng.standard_normal())))
        out += [full] * (n // 3) + np.linspace(full, full * (1 - swing), n - n // 3).tolist()
    return np.array(out[-round(seconds) :] if seconds < len(out) else out)


def flat(value: float, seconds: int = 300) -> np.ndarray:
    return np.full(seconds, value)


# --- rhythm ----------------------------------------------------------------------------------------------------------


def test_cycles_while_requests_wait_are_recurrent():
    w = window(req_running=np.append(saw(18, 290, jitter=0.2), flat(40, 10)), req_waiting=flat(5))
    found = rhythm(w)
    assert found.cycles >= 8
    assert found.period_s == pytest.approx(18, abs=3)
    assert found.swing_ratio == pytest.approx(0.8, abs=0.1)
    assert found.lost_slots_ratio > 0.2
    assert rhythm_state(w).kind in ("recurrent", "periodic")


def test_the_same_swing_without_a_queue_is_load():
    """Batch thrashing's twin: periodic demand drains the batch too, but nobody waits."""
    w = window(req_running=saw(18, 300), req_waiting=flat(0))
    assert rhythm(w).cycles == 0
    assert rhythm_state(w).kind == "steady"


def test_only_a_regular_swing_is_periodic():
    t = np.arange(300)
    even = window(req_running=24 + 16 * np.sin(2 * np.pi * t / 20), req_waiting=flat(5))
    assert even.once(is_periodic)
    assert rhythm_state(even).kind == "periodic"
    uneven = window(req_running=saw(18, 300, jitter=0.6), req_waiting=flat(5))
    assert rhythm(uneven).cycles >= 4
    assert rhythm_state(uneven).kind == "recurrent"


def test_an_episode_that_is_long_over_is_not_current():
    w = window(req_running=np.append(saw(18, 150), flat(40, 150)), req_waiting=flat(5))
    found = rhythm(w)
    assert found.cycles >= 3
    assert not found.current
    assert rhythm_state(w).kind == "steady"


def test_a_rhythm_is_not_known_without_the_running_set():
    assert rhythm_state(window(req_waiting=flat(3))).kind == "unknown"


# --- queue -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waiting", "trend"),
    [
        (flat(0, 60), "empty"),
        (flat(12, 60), "standing"),
        (np.linspace(0, 60, 60), "growing"),
        (np.linspace(60, 5, 60), "draining"),
        (np.append(flat(0, 20), flat(math.nan, 40)), "unknown"),
    ],
)
def test_the_trend_of_a_queue(waiting, trend):
    assert queue(window(req_waiting=waiting)).trend == trend


def test_when_the_objective_is_gone():
    """Two a second are served and the objective is five seconds: the eleventh in the queue is late."""
    slo = Slo(ttft_p95_s=5.0)
    served = {"req_finished_total": flat(2, 60), "req_arrived_total": flat(2.1, 60)}
    w = window(slo, req_waiting=np.append(flat(0, 30), np.linspace(0, 3, 30)), **served)
    assert queue(w).until_s == pytest.approx(70, rel=0.25)
    assert queue(window(slo, req_waiting=flat(40, 60), **served)).until_s == 0.0
    assert queue(window(slo, req_waiting=np.linspace(9, 2, 60), **served)).until_s is None


def test_a_queue_began_after_the_last_quiet_seconds():
    waiting = np.concatenate([flat(3, 30), flat(0, 30), np.linspace(1, 50, 60)])
    assert began_at(window(req_waiting=waiting)) - START == pytest.approx(64, abs=4)
    with pytest.raises(Missing):
        began_at(window(req_waiting=flat(0, 60)))


# --- demand ----------------------------------------------------------------------------------------------------------


def arrivals(rates: np.ndarray, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).poisson(rates).astype(float)


@pytest.mark.parametrize(
    ("rates", "steps"),
    [
        (np.append(flat(4, 240), flat(9, 60)), True),
        (flat(5, 300), False),
        (np.append(flat(8, 240), flat(4, 60)), False),
        (np.append(flat(4, 240), flat(5, 60)), False),
    ],
    ids=["doubles", "flat", "halves", "a quarter more"],
)
def test_only_a_step_of_half_again_is_a_surge(rates, steps):
    hits = 0
    for seed in range(10):
        w = window(req_arrived_total=arrivals(rates, seed), req_finished_total=flat(4))
        if found := surge(w):
            hits += 1
            assert abs(w.once(surge_at) - (START + 240)) < 15
            assert found.after / found.before >= 1.5
    assert hits >= 9 if steps else hits <= 1


def test_a_ramp_over_minutes_is_no_surge():
    """The rates a minute before and after any point differ by less than half: growth, not a step."""
    rates = np.append(flat(4, 60), np.linspace(4, 7, 240))
    hits = sum(
        surge(window(req_arrived_total=arrivals(rates, s), req_finished_total=flat(4))) is not None for s in range(10)
    )
    assert hits <= 3


def test_arrivals_are_read_from_what_came_in_where_nothing_counts_them():
    """vLLM counts no arrivals: finished + running + waiting grows by them."""
    running = np.minimum(np.arange(60.0) * 3, 60)
    w = window(req_finished_total=flat(1, 60), req_running=running, req_waiting=flat(0, 60))
    assert flow(w).arrivals_per_s == pytest.approx(2.0, abs=0.2)
    assert flow(w).completions_per_s == pytest.approx(1.0, abs=0.05)


def test_load_factors_say_what_every_order_of_service_would_need():
    """Half the pool is held while only half of what arrives is served: the pool would be just enough."""
    w = window(
        info={"max_num_seqs": "40"},
        kv_usage_ratio=flat(0.5, 150), req_running=flat(10, 150),
        req_arrived_total=flat(4, 150), req_finished_total=flat(2, 150),
    )  # fmt: skip
    assert load_factors(w).kv == pytest.approx(1.0, rel=0.05)
    assert load_factors(w).seqs == pytest.approx(0.5, rel=0.05)


def test_fit_is_counted_by_the_ring_and_inferred_without_it():
    seen = {"req_waiting": flat(6, 60), "req_running": flat(10, 60), "kv_usage_ratio": flat(0.5, 60)}
    ring = {"waiting_fit": np.append(flat(0, 30), flat(4, 30)), "admission_stop_reason": flat(1, 60)}
    told = fit(window(**seen, **ring))
    assert (told.witness, told.share) == ("waiting_fit", pytest.approx(0.5))
    inferred = fit(window(info={"max_num_seqs": "32"}, **seen))
    assert (inferred.witness, inferred.share) == ("kv_usage_ratio", 1.0)
    assert fit(window(info={"max_num_seqs": "10"}, **seen)).share == 0.0, "a full batch holds them back, not the order"
    with pytest.raises(Missing):
        fit(window(req_waiting=flat(6, 60)))


def test_requests_that_would_fit_but_wait_for_a_batch_slot_are_not_held_back():
    w = window(req_waiting=flat(6, 60), waiting_fit=flat(6, 60), admission_stop_reason=flat(2, 60))
    assert fit(w).share == 0.0


def test_long_requests_are_measured_against_the_usual_length():
    world = World()
    rows = [InFlight(i, START + i / 4, prompt_tokens=100, blocks=10) for i in range(30)]
    world.in_flight([*rows, InFlight(99, START + 8, prompt_tokens=5000, blocks=300)])
    world.run(5, req_running=31.0)
    assert long_share(world.window()) == pytest.approx(0.5)


# --- latency ---------------------------------------------------------------------------------------------------------


def answered(world: World, n: int, ttft_s: float, queue_ratio: float = 0.5) -> None:
    for i in range(n):
        queue_s = ttft_s * queue_ratio
        world.finish(i + 1, world.now - ttft_s - 2.0, queue_s, ttft_s - queue_s, decode_s=1.5)


def test_users_feel_what_spans_say():
    world = World()
    answered(world, 18, 0.2)
    for i in range(2):
        world.finish(100 + i, world.now - 9, 7.0, 0.1, 1.0)
    world.run(20, req_running=4.0, req_waiting=0.0, head_wait_seconds=0.0)
    told = felt(world.window())
    assert told.good_ratio == pytest.approx(0.9)
    assert told.ttft_p50_s == pytest.approx(0.2)
    assert told.ttft_p95_s > 5


def test_those_who_still_wait_are_felt_though_no_histogram_knows_them():
    """Survivor bias: every finished request was quick, and fifty wait beyond the objective."""
    world = World()
    for _ in range(40):
        world.finish(int(world.now), world.now - 3, 0.05, 0.1, 1.0)
        world.run(
            1, req_running=8.0, req_waiting=54.0, head_wait_seconds=20.0, req_arrived_total=4.0, req_finished_total=1.0
        )
    w = world.window()
    assert late_waiting(w) == pytest.approx(50, abs=1)
    assert felt(w).good_ratio == pytest.approx(40 / 90, abs=0.02)
    assert felt(w).ttft_p95_s == pytest.approx(20, abs=2)


def test_nobody_is_late_while_the_head_is_in_time():
    w = window(req_waiting=flat(30, 60), head_wait_seconds=flat(0.4, 60), req_finished_total=flat(5, 60),
               req_arrived_total=flat(5, 60))  # fmt: skip
    assert late_waiting(w) == 0.0


def test_without_spans_histograms_tell():
    world = World(sees="page")
    for _ in range(70):
        world.observe("ttft_seconds", 0.2, 0.2, 0.3, 4.0)
        world.observe("queue_seconds", 0.0, 0.0, 0.0, 3.8)
        world.observe("prefill_seconds", 0.2, 0.2, 0.3, 0.2)
        world.run(1, req_running=4.0, req_waiting=0.0, req_finished_total=4.0)
    assert felt(world.window()).good_ratio == pytest.approx(0.75)
    split = shares(world.window())
    assert split.queue == pytest.approx(3.8 / 4.7, rel=0.02)
    assert sum(split) == pytest.approx(1.0)
    assert latency(world.window()).stage == "queue"


def test_nothing_is_felt_where_nothing_is_told():
    with pytest.raises(Missing):
        felt(window(req_waiting=flat(3, 60), head_wait_seconds=flat(0.1, 60)))


# --- progress --------------------------------------------------------------------------------------------------------


def test_a_step_that_does_not_end_stalls():
    world = World()
    world.set(step_seconds=0.05, step_prefill_tokens=0.0, generated_tokens_total=100.0)
    world.run(30, req_running=4.0, req_waiting=2.0)
    world.hang(running=4.0, waiting=2.0, prefill_tokens=0.0)
    world.run(15)
    s = stall(world.window())
    assert s.for_s == pytest.approx(15, abs=0.1)
    assert s.inside == 6
    assert s.predicted_s == pytest.approx(0.05, abs=0.02)
    world.resume()
    world.run(3)
    assert stall(world.window()).for_s == 0.0


def test_a_page_stalls_when_what_must_move_does_not():
    world = World(sees="page")
    world.run(30, req_running=4.0, req_waiting=0.0, generated_tokens_total=100.0)
    assert stall(world.window()).for_s == 0.0
    world.run(20, generated_tokens_total=0.0)
    assert stall(world.window()).for_s == pytest.approx(20, abs=2)
    world.run(5, req_running=0.0)
    assert stall(world.window()).for_s == 0.0, "an idle engine does not stall"


def test_a_long_prefill_is_predicted_from_what_tokens_cost():
    world = World()
    world.run(60, req_running=4.0, step_seconds=0.5, step_prefill_tokens=1000.0)
    world.hang(prefill_tokens=40_000)
    world.run(10)
    assert stall(world.window()).predicted_s == pytest.approx(20, rel=0.2)


@pytest.mark.parametrize(
    ("dram", "tensor", "says"), [(0.0, 0.0, "idle"), (0.6, 0.1, "busy"), (0.0, 0.5, "busy"), (None, None, "blind")]
)
def test_what_the_device_witnesses(dram, tensor, says):
    world = World(gpu="GPU-1")
    world.run(10, req_running=1.0, gpu_dram_active_ratio=dram, gpu_tensor_active_ratio=tensor)
    assert device_witness(world.window()).says == says


@pytest.mark.parametrize(
    ("readings", "mode"),
    [
        ({"gpu_dram_active_ratio": 0.8, "gpu_tensor_active_ratio": 0.1, "gpu_sm_active_ratio": 0.9}, "bandwidth-bound"),
        ({"gpu_dram_active_ratio": 0.3, "gpu_tensor_active_ratio": 0.6, "gpu_sm_active_ratio": 0.9}, "compute-bound"),
        ({"gpu_dram_active_ratio": 0.1, "gpu_tensor_active_ratio": 0.05, "gpu_sm_active_ratio": 0.2}, "waiting"),
        ({"gpu_dram_active_ratio": 0.8, "gpu_tensor_active_ratio": 0.1, "gpu_throttled_ratio": 0.3}, "throttled"),
        ({"gpu_util_ratio": 1.0}, "unknown"),
    ],
)
def test_how_the_gpu_is_busy(readings, mode):
    """Utilisation alone says only that a kernel existed."""
    world = World(gpu="GPU-1")
    world.run(15, req_running=8.0, **readings)
    assert gpu(world.window()).mode == mode


# --- what moved ------------------------------------------------------------------------------------------------------


def test_a_change_of_lengths_is_dated_and_sized():
    toy = ToyEngine()
    toy.load(4)
    toy.run(100)
    at = toy.now
    toy.load(0.4, prompt_tokens=(4000, 6000))
    toy.run(60)
    w = toy.window()
    shift = length_shift(w)
    assert shift is not None
    assert shift.at == pytest.approx(at, abs=15)
    assert shift.before_share == 0.0
    assert shift.after_share == pytest.approx(0.4 / 4.4, rel=0.6)
    assert moved(w).what == "shape"
    assert trigger(w, at + 10).kind == "length_shift"
    assert trigger(w, at - 60) is None, "what came after the onset did not set it off"


def test_a_change_is_blamed_only_before_the_onset():
    world = World()
    world.run(40, req_running=4.0, req_waiting=0.0)
    world.event("arguments", what="--max-num-seqs 512")
    world.run(40)
    w = world.window()
    assert moved(w).what == "change"
    assert trigger(w, START + 60).kind == "change"
    assert trigger(w, START + 20) is None


# --- lifecycle -------------------------------------------------------------------------------------------------------


def life(world: World, warm_up_s: float = 30.0, **maintenance: float) -> str:
    announced = (Maintenance(**maintenance),) if maintenance else ()
    return lifecycle(world.window(), warm_up_s, announced)


def test_an_engine_warms_until_it_has_answered():
    world = World()
    world.run(5, req_running=1.0, req_finished_total=0.0)
    assert life(world) == "warming"
    world.run(5, req_finished_total=10.0)
    assert life(world) == "serving", "twenty answers end the warm-up"
    world.event("restart")
    world.run(3, req_finished_total=0.0)
    assert life(world) == "warming"
    world.run(30)
    assert life(world) == "serving", "and so does time"


def test_maintenance_is_announced_by_configuration_or_by_an_event():
    world = World()
    world.run(40, req_running=1.0)
    assert life(world, from_at=START, until_at=START + 100) == "maintenance"
    assert life(world, from_at=START, until_at=START + 40) == "serving"
    world.event("maintenance", until_at=str(world.now + 60))
    world.run(5)
    assert life(world) == "maintenance"
    world.run(60)
    assert life(world) == "serving"


def test_an_engine_whose_polls_fail_is_gone():
    world = World(sees="page")
    world.run(40, req_running=1.0)
    world.fail("engine")
    world.run(5)
    assert life(world) == "serving"
    world.run(10)
    assert life(world) == "gone"
    world.fail("engine", "")
    world.run(2)
    assert life(world) == "serving"


def test_a_maintenance_event_with_nonsense_for_an_end_is_no_maintenance_and_no_crash():
    """Details of events come from outside."""
    world = World()
    world.run(40, req_running=1.0)
    world.event("maintenance", until_at="tomorrow")
    world.run(5)
    assert life(world) == "serving"
