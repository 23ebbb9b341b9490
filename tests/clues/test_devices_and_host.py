"""Devices and hosts: faults by code, limits, neighbours, quotas; and the look-alikes that are none."""

import pytest

from gpuwatch.model import Subject
from tests.clues.looks import Evidence, candidates_of, first, named

NODE = Subject(engine="kernel")


@pytest.mark.parametrize("code", [48, 62, 63, 64, 74, 79, 94, 95, 119, 154])
def test_codes_of_the_device_are_faults(code):
    found = first(Evidence("").say(0, "xid", engine="kernel", code=code))
    assert found.rule == "gpu_hardware_fault"
    assert found.action == "observe", "one witness drains no node"


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_codes_of_a_program_are_none(code):
    assert named(Evidence("").say(0, "xid", engine="kernel", code=code)) == ["engine_crash"]


def test_a_fault_comes_before_what_the_engine_says_of_it():
    evidence = (
        Evidence().say(0, "xid", engine="kernel", code=79).say(3, "collective_timeout", rank=1).say(4, "engine_dead")
    )
    assert named(evidence) == ["gpu_hardware_fault"]
    assert {s.rule for s in first(evidence).symptoms} >= {"engine_hang"}


def test_a_sticky_gauge_dates_nothing_and_is_less_sure():
    sticky, dated = Evidence("").gpu(0, xid=79), Evidence("").say(0, "xid", engine="kernel", code=79)
    assert first(sticky).rule == "gpu_hardware_fault"
    assert first(sticky).confidence < first(dated).confidence
    assert first(sticky).severity == "ticket"


def test_no_code_and_a_program_s_sticky_code_are_silent():
    assert named(Evidence("").gpu(0, xid=0, util=0.9)) == []
    assert named(Evidence("").gpu(0, xid=43, util=0.9)) == []


def test_the_text_of_a_memory_error_needs_telemetry():
    text = Evidence().say(0, "ecc_error")
    proven = Evidence().say(0, "ecc_error").gpu(0, gpu_ecc_uncorrected_total=2)
    assert first(text).rule == first(proven).rule == "gpu_hardware_fault"
    assert first(text).confidence < 0.6 < first(proven).confidence
    assert "engine_crash" in candidates_of(first(text))


def test_a_limit_in_force_while_it_works_is_throttling():
    found = first(Evidence("").gpu(0, util=0.98, throttled=0.4, clock=1.2e9, clock_max=1.98e9, celsius=88))
    assert (found.rule, found.mechanism) == ("gpu_throttling", "thermal")


def test_a_low_clock_without_work_or_without_a_limit_is_none():
    assert (
        named(Evidence("").gpu(0, util=0.02, throttled=0.0, clock=0.3e9, clock_max=1.98e9, power=60, power_limit=700))
        == []
    )
    assert (
        named(Evidence("").gpu(0, util=0.95, throttled=0.0, clock=1.9e9, clock_max=1.98e9, power=690, power_limit=700))
        == []
    )


def test_a_starved_device_is_not_called_throttled():
    evidence = Evidence("llamacpp").gpu(
        0, util=0.35, throttled=0.0, clock=1.8e9, clock_max=2.6e9, power=16, power_limit=80
    )
    for n in range(3):
        evidence.look(5 * n, req_running=1, req_waiting=0, steps_total=30 * n, kv_usage_ratio=0.2)
    found = first(evidence)
    assert "gpu_throttling" not in candidates_of(found)
    assert "gpu_throttling" in {r.rule for r in found.ruled_out}


def test_one_slow_peer_is_a_straggler():
    evidence = Evidence("")
    for n, clock in enumerate((1.98e9, 1.97e9, 1.1e9, 1.98e9)):
        evidence.gpu(0, f"GPU-{n}", util=0.99, clock=clock)
    assert first(evidence).rule == "straggler_gpu"


def test_a_device_that_works_for_nobody_here_has_a_neighbour():
    evidence = Evidence()
    for n in range(4):
        evidence.look(15 * n, req_running=0, req_waiting=0, generated_tokens_total=7).gpu(15 * n, sm=0.7, dram=0.5)
    assert first(evidence).rule == "gpu_noisy_neighbor"


def test_a_pool_that_shrank_between_two_starts():
    evidence = Evidence().facts(kv_capacity_tokens=90_000).facts(60, kv_capacity_tokens=35_000)
    found = first(evidence)
    assert (found.rule, found.mechanism) == ("gpu_noisy_neighbor", "pool_shrunk_at_start")


def test_a_pool_that_shrank_with_its_arguments_did_so_on_purpose():
    evidence = Evidence().facts(kv_capacity_tokens=90_000, arg_gpu_memory_utilization="0.9")
    assert named(evidence.facts(60, kv_capacity_tokens=35_000, arg_gpu_memory_utilization="0.4")) == []


def test_a_quota_that_holds_steps_up():
    evidence = Evidence().gpu(0, sm=0.2)
    for n in range(3):
        evidence.look(
            10 * n,
            req_running=20,
            req_waiting=0,
            kv_usage_ratio=0.2,
            cgroup_cpu_throttled_ratio=0.9,
            generated_tokens_total=50 * n,
        )
    found = first(evidence)
    assert found.rule == "host_cpu_throttling"
    assert any("OMP_NUM_THREADS" in a.knob for a in found.advice)


def test_a_quota_that_is_hit_while_nothing_runs_is_no_incident():
    assert named(Evidence().look(0, req_running=0, req_waiting=0, cgroup_cpu_throttled_ratio=0.9)) == []


def test_spinning_workers_are_no_bottleneck():
    evidence = Evidence()
    for n in range(4):
        evidence.look(10 * n, req_running=0, req_waiting=0, process_cpu_ratio=1.0, generated_tokens_total=5)
    assert named(evidence) == []
    busy = Evidence()
    for n in range(4):
        busy.look(
            10 * n,
            req_running=9,
            req_waiting=0,
            process_cpu_ratio=1.0,
            generated_tokens_total=900 * n,
            kv_usage_ratio=0.3,
        )
    assert named(busy) == []


def test_late_first_tokens_before_an_empty_queue_are_the_front_end_s():
    evidence = Evidence().gpu(0, sm=0.6)
    for n in range(4):
        evidence.look(
            10 * n,
            req_running=60,
            req_waiting=0,
            process_cpu_ratio=1.02,
            generated_tokens_total=9000 * n,
            kv_usage_ratio=0.2,
        )
        evidence.histogram(10 * n, "ttft_seconds", 300.0 * n, 100.0 * n).histogram(
            10 * n, "queue_seconds", 1.0 * n, 100.0 * n
        )
        evidence.histogram(10 * n, "prefill_seconds", 10.0 * n, 100.0 * n)
    assert first(evidence).rule == "frontend_cpu_bottleneck"


def memory(slope: float) -> Evidence:
    evidence = Evidence()
    for n in range(60):
        evidence.look(
            300 * n,
            req_running=5,
            req_waiting=0,
            process_memory_bytes=6e9 + slope * min(n, 20 if slope < 0 else 60),
            req_finished_total=1000 * n,
            generated_tokens_total=5000 * n,
        )
    return evidence


def test_memory_that_only_rises_is_a_leak_by_request():
    found = first(memory(9e6))
    assert found.rule == "host_memory_leak"
    assert any(e.signal == "bytes for each request" for e in found.evidence)


def test_memory_that_finds_a_plateau_is_none():
    evidence = Evidence()
    for n in range(60):
        evidence.look(
            300 * n,
            req_running=5,
            req_waiting=0,
            process_memory_bytes=6e9 + 9e7 * min(n, 12),
            generated_tokens_total=5000 * n,
        )
    assert named(evidence) == []
