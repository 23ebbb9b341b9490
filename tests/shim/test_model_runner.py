"""The roofline runner against numbers that can be worked out by hand, and what its readings say of known states."""

from typing import Any

import numpy as np
import pytest

from engine_shim.devices.profile_file import device_named
from engine_shim.runners.modelled.runner import READINGS, ModelRunner, PacedRunner
from engine_shim.settings.engine import EngineSettings
from engine_shim.step import StepPlan
from tests.shim.playing import request


def runner(device: str = "h100", **settings: Any) -> ModelRunner:
    return ModelRunner(EngineSettings.from_table({"model": "7b", **settings}), device_named(device))


def decode(count: int, context: int) -> StepPlan:
    """`count` requests that decode, each with `context` tokens of KV."""
    return StepPlan(decode=[request(str(i), context, 1) for i in range(count)], context_tokens=count * context)


def prefill(tokens: int, start: int = 0) -> StepPlan:
    long = request("long", tokens + start, 1)
    long.computed_tokens = start
    return StepPlan(prefill=[(long, tokens)])


def readings(model: ModelRunner, plan: StepPlan) -> dict[str, float]:
    _, seconds = model.run(plan)
    return {name: float(v[0]) for name, v in model.readings(np.array([model.work]), np.array([seconds])).items()}


def test_a_lone_decode_reads_the_weights_once() -> None:
    """The published example: 70B in bf16 over four H100 is 10.4 ms of weights a step at full bandwidth."""
    model = runner(model="70b", tensor_parallel=4)
    _, seconds = model.run(decode(1, 1))
    weights_s = 2 * (80 * 855_638_016 + 8192 * 128_256) / 4 / 3.35e12
    assert weights_s == pytest.approx(0.0104, rel=0.02)
    assert seconds > weights_s / 0.85
    assert seconds == pytest.approx(weights_s / 0.85 + 0.0012 + 160 * 8e-6, rel=0.03)


def test_decodes_slow_down_with_the_kv_they_read() -> None:
    """Bandwidth-bound: the difference is the bytes over the bandwidth."""
    model = runner()
    _, short = model.run(decode(32, 500))
    _, long = model.run(decode(32, 8500))
    assert long - short == pytest.approx(32 * 8000 * 131_072 / (3.35e12 * 0.85), rel=1e-6)


def test_prefill_attention_grows_with_the_square_of_the_prompt() -> None:
    """Twice the prompt takes more than twice the time; a late chunk takes longer than an early one of the same size."""
    model = runner()
    one, two = (model.run(prefill(tokens))[1] for tokens in (30_000, 60_000))
    assert two > 2.3 * one
    assert model.run(prefill(8192, start=50_000))[1] > 1.5 * model.run(prefill(8192))[1]


def test_a_prefill_completes_with_one_token_and_a_chunk_with_none() -> None:
    model = runner()
    cut = prefill(100)
    cut.prefill[0][0].prompt_tokens = 500
    assert model.run(cut)[0] == []
    assert model.run(prefill(100))[0] == [0]
    assert model.run(decode(3, 10))[0] == [0, 0, 0]


def test_faster_memory_helps_decodes_and_not_prefills() -> None:
    h100, h200 = runner("h100"), runner("h200")
    assert h100.run(decode(16, 2000))[1] > 1.3 * h200.run(decode(16, 2000))[1]
    assert h100.run(prefill(8192))[1] == pytest.approx(h200.run(prefill(8192))[1], rel=1e-3)


def test_a_lower_clock_slows_prefills_in_proportion_and_decodes_hardly() -> None:
    model = runner()
    normal = [model.run(plan)[1] for plan in (prefill(8192), decode(16, 2000))]
    model.clock_ratio = 0.5
    slow = [model.run(plan)[1] for plan in (prefill(8192), decode(16, 2000))]
    assert slow[0] / normal[0] == pytest.approx(2.0, rel=0.02)
    assert slow[1] == normal[1]
    assert readings(model, prefill(8192))["sm_clock_hertz"] == pytest.approx(0.99e9)


def test_decodes_look_bandwidth_bound_and_prefills_compute_bound() -> None:
    """The cut-offs by which an observer tells the two apart."""
    model = runner()
    decoding, filling = readings(model, decode(40, 1500)), readings(model, prefill(8192))
    assert decoding["dram_active_ratio"] > 0.6
    assert decoding["tensor_active_ratio"] < 0.3
    assert filling["tensor_active_ratio"] > 0.5
    assert filling["dram_active_ratio"] < 0.3
    assert filling["power_watts"] > decoding["power_watts"] > 200


@pytest.mark.parametrize("device", ["a10", "l4", "l40s", "a100", "h100", "h200", "b200"])
def test_readings_stay_within_their_bounds(device: str) -> None:
    model = runner(device)
    for plan in (decode(1, 10), decode(256, 4000), prefill(16), prefill(100_000)):
        shown = readings(model, plan)
        assert tuple(shown) == READINGS
        assert all(0 <= value <= 1 for name, value in shown.items() if name.endswith("_ratio"))
        assert model.device.idle_power_watts < shown["power_watts"] <= model.device.power_limit_watts
        assert shown["dram_bytes"] > 0


def test_an_idle_device_and_a_hung_one_differ() -> None:
    """A kernel that never ends keeps the engine-active counter at 1, while nothing is read and little power is drawn."""
    model = runner()
    idle, hung, busy = model.idle_readings(), model.hung_readings(), readings(model, decode(16, 1000))
    assert set(idle) == set(hung) == set(READINGS)
    assert (idle["gr_engine_active_ratio"], hung["gr_engine_active_ratio"]) == (0.0, 1.0)
    assert hung["dram_active_ratio"] == 0.0
    assert idle["power_watts"] < hung["power_watts"] < busy["power_watts"]


def test_in_real_time_the_modelled_seconds_pass() -> None:
    waited: list[float] = []
    model = runner()
    paced = PacedRunner(model, waited.append)
    tokens, seconds = paced.run(decode(4, 100))
    assert tokens == [0, 0, 0, 0]
    assert waited == [seconds] == [model.run(decode(4, 100))[1]]
