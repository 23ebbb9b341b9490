"""Scenarios of classes that have no rule yet: each shows its mechanism, does harm, and is cured by its cure.

Played in virtual time on an H100; what is compared is what clients and watchers would see, with and without the cure.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest

from engine_shim.demand.scenario import load_scenario
from engine_shim.devices.profiles import DEVICES
from gpuwatch.rules.families import FAMILY_OF
from tests.shim.outcomes import SCENARIOS, Outcome, play, read

COMING = sorted(path.stem for path in (SCENARIOS / "coming").glob("*.toml"))
HEALTHY = [stem for stem in COMING if stem.startswith("healthy_")]


@dataclass(frozen=True)
class Case:
    """`harm` is a number that must be `times` as large as with the cure; `sign` is what the stream shows, and only then."""

    harm: Callable[[Outcome], float]
    sign: Callable[[Outcome], bool]
    times: float = 3.0
    until_s: float = 110.0


def ttft(o: Outcome) -> float:
    return o.ttft_p95(62)


def unserved(o: Outcome) -> float:
    """Seconds per request served: how slowly things go on."""
    return 1.0 / max(o.served(62), 0.1)


def tpot(o: Outcome) -> float:
    return o.tpot_p95(62)


def slow_from_the_start(o: Outcome) -> float:
    return o.tpot_p95(10)


def late(o: Outcome) -> float:
    return o.ttft_p95(100)


def waits_of_clients(o: Outcome) -> float:
    """The longest gap that the client of a stream sees: the engine's steps, or what a proxy makes of them."""
    return max(o.stage_p95("client", 62), o.step_p95(62))


def longest_step(o: Outcome) -> float:
    begun, ended = o.steps["begun_at"], o.steps["ended_at"]
    return sorted(e - b for b, e in zip(begun, ended, strict=True) if b > 62)[-3]


def page_age(o: Outcome) -> float:
    """How long the page has said the same."""
    values = o.page_value("shim:generation_tokens_total", 60)
    return 1.0 + values.count(values[-1])


def down(o: Outcome) -> bool:
    return any(at > 62 for at in o.errors)


CASES = {
    "admission_deferred": Case(ttft, lambda o: max(o.page_value("shim:requests_deferred", 62), default=0) > 10),
    "admission_deferred_grammar": Case(ttft, lambda o: max(o.page_value("shim:requests_deferred", 62), default=0) > 10),
    "cold_start": Case(ttft, lambda o: any(what == "restart" for _, what, _ in o.events), until_s=150),
    "engine_crash": Case(unserved, lambda o: down(o) and not o.events),
    "engine_hang_collective": Case(
        unserved,
        lambda o: (
            o.gpu("gpu_sm_active_ratio", 80) > 0.8
            and o.gpu("gpu_dram_active_ratio", 80) < 0.05
            and o.gpu("gpu_sm_active_ratio", 80, index=1) < 0.05
        ),
    ),
    "frontend_cpu_bottleneck": Case(ttft, lambda o: o.stage_p95("preprocess", 62) > 1 and o.mean("waiting", 62) < 0.5),
    "frontend_cpu_bottleneck_event_loop": Case(ttft, lambda o: o.stage_p95("preprocess", 62) > 1),
    "gpu_hardware_fault": Case(unserved, lambda o: o.gpu("gpu_xid_last_code", 62) == 79),
    "gpu_noisy_neighbor": Case(tpot, lambda o: o.gpu("gpu_dram_active_ratio", 62) > 0.75, times=2),
    "gpu_throttling": Case(ttft, lambda o: o.gpu("gpu_throttled_ratio", 62) > 0.9),
    "gpu_throttling_power_brake": Case(ttft, lambda o: o.gpu("gpu_throttled_ratio", 62) > 0.9),
    "host_cpu_throttling": Case(ttft, lambda o: bool(o.host) and o.of_host("cgroup_cpu_throttled_ratio", 62) > 0.5),
    "host_memory_leak": Case(
        lambda o: 1.0 + len(o.errors),
        lambda o: bool(o.host) and max(row["process_memory_bytes"] for _, row in o.host) > 30e9,
        until_s=130,
    ),
    "kv_offload_stall": Case(
        ttft, lambda o: o.gpu("gpu_gr_engine_active_ratio", 62) < 0.7 * o.gpu("gpu_util_ratio", 62)
    ),
    "length_shift": Case(ttft, lambda o: o.mean("waiting", 80) > 20),
    "max_tokens_over_reservation": Case(
        ttft, lambda o: o.mean("kv_reserved_blocks", 62) > 5 * o.mean("kv_used_blocks", 62)
    ),
    "memory_fragmentation": Case(ttft, lambda o: "kv_largest_free_blocks" in o.steps, times=2, until_s=150),
    "pd_transfer_stall": Case(lambda o: o.stage_p95("transfer", 62), lambda o: o.stage_p95("transfer", 62) > 0.5),
    "preemption_storm": Case(late, lambda o: o.steps["preempted_total"][-1] > 20, until_s=160),
    "prefill_decode_interference": Case(longest_step, lambda o: o.mean("waiting", 62) < 5 and longest_step(o) > 0.5),
    "prefix_cache_collapse": Case(ttft, lambda o: _hit_ratio(o, 62) < 0.75),
    "quantization_fallback": Case(
        slow_from_the_start,
        lambda o: bool(o.page_value('shim:linear_calls_total{kernel="dequantize_matmul"', 10)),
        times=2,
        until_s=40,
    ),
    "spec_decode_regression": Case(
        slow_from_the_start,
        lambda o: bool(o.page_value("shim:spec_decode_num_drafts_total", 10)),
        times=1.2,
        until_s=30,
    ),
    "retry_storm": Case(
        lambda o: 1.0 / max(o.served(90), 0.1),
        lambda o: o.steps["arrived_total"][-1] > 1.5 * o.steps["finished_total"][-1],
        until_s=130,
    ),
    "runaway_generation": Case(ttft, lambda o: o.mean("running", 90) > 40),
    "stale_telemetry": Case(page_age, lambda o: page_age(o) > 20),
    "start_failure": Case(
        unserved, lambda o: [detail.get("ready") for _, what, detail in o.events if what == "restart"] == [False] * 2
    ),
    "step_time_regression": Case(tpot, lambda o: o.step_p95(100) > 1.5 * o.step_p95(0), times=1.5, until_s=150),
    "straggler_gpu": Case(
        ttft, lambda o: o.gpu("gpu_sm_clock_hertz", 62, index=1) < 0.5 * o.gpu("gpu_sm_clock_hertz", 62, index=0)
    ),
    "streaming_jitter": Case(waits_of_clients, lambda o: o.stage_p95("client", 62) > 1 and o.step_p95(62) < 0.02),
    "unknown_block_leak": Case(late, lambda o: _orphaned(o) > 500, until_s=150),
    "unknown_stalled_client": Case(unserved, lambda o: o.mean("decode_tokens", 80) < 0.5 * o.mean("running", 80)),
    "unschedulable_request": Case(unserved, lambda o: o.mean("waiting_fit", 80) > 20 and o.mean("running", 80) < 1),
}


def _hit_ratio(o: Outcome, from_s: float) -> float:
    """Share of the long prompts that the cache had."""
    long = [r for r in o.requests(from_s) if r["prompt_tokens"] > 8000]
    return sum(r["cached_tokens"] for r in long) / max(sum(r["prompt_tokens"] for r in long), 1)


def _orphaned(o: Outcome) -> float:
    """Blocks in use at the end of the run beyond what the running requests' tokens fill."""
    return o.steps["kv_slots_unused"][-1] / 16


@cache
def _played(stem: str, cured: bool, until_s: float) -> Outcome:
    scenario = read(stem)
    return play(scenario.cured() if cured else scenario, until_s=until_s)


def test_every_scenario_is_checked_here():
    assert set(COMING) == {*CASES, *HEALTHY}


def test_every_class_has_a_scenario_or_the_docs_say_why_not():
    """A class's scenarios are called as it is, or so and what is particular about them."""
    files = [path.stem for folder in (SCENARIOS, SCENARIOS / "coming") for path in folder.glob("*.toml")]
    without = {stem for stem in FAMILY_OF if not any(f == stem or f.startswith(f"{stem}_") for f in files)}
    page = (SCENARIOS.parents[1] / "docs" / "scenario.md").read_text()
    [said] = re.findall(r"Three classes have no scenario.*?\n\n", page, re.DOTALL)
    assert without == {"replica_imbalance", "capacity_loss", "host_io_contention"}
    assert all(f"`{stem}`" in said for stem in without)


@pytest.mark.parametrize("stem", COMING)
def test_the_file_is_valid_on_every_device(stem: str):
    for device in DEVICES:
        load_scenario(SCENARIOS / "coming" / f"{stem}.toml", device)


@pytest.mark.parametrize("stem", CASES)
def test_the_harm_is_there_and_the_cure_removes_it(stem: str):
    case = CASES[stem]
    harmed, cured = _played(stem, False, case.until_s), _played(stem, True, case.until_s)
    assert case.harm(harmed) >= case.times * case.harm(cured), (case.harm(harmed), case.harm(cured))


@pytest.mark.parametrize("stem", CASES)
def test_the_mechanism_shows_and_only_with_the_harm(stem: str):
    case = CASES[stem]
    assert case.sign(_played(stem, False, case.until_s))
    if stem != "memory_fragmentation":  # whose sign is a field that its layout has
        assert not case.sign(_played(stem, True, case.until_s))


@pytest.mark.parametrize("stem", HEALTHY)
def test_what_only_looks_bad_harms_nobody(stem: str):
    scenario = read(stem)
    with_it = play(scenario, until_s=100)
    without = play(scenario.cured(), until_s=100) if scenario.cure else with_it
    assert with_it.ttft_p95(0) < 0.2
    assert with_it.tpot_p95(0) < 0.02
    assert with_it.ttft_p95(62) <= 1.15 * without.ttft_p95(62) + 0.005
    assert with_it.tpot_p95(62) <= 1.15 * without.tpot_p95(62)
