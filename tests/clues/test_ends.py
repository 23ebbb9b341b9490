"""Ends of processes, failed starts, kernel messages and single retractions as short evidence, each with its neighbour."""

from __future__ import annotations

import pytest

from tests.clues.looks import Evidence, candidates_of, first, named


def test_an_engine_killed_for_host_memory_is_its_crash_and_another_process_is_a_remark():
    found = first(Evidence().say(0, "killed_for_memory", own=1, limited=1, resident_bytes=2**34))
    assert (found.rule, found.mechanism, found.severity) == ("engine_crash", "killed_for_memory", "ticket")
    assert "host_memory_leak" in candidates_of(found)
    assert "16.00 GiB" in found.summary
    other = first(Evidence().say(0, "killed_for_memory", own=0, limited=0))
    assert other.severity == "info"


def test_an_engine_that_gives_up_while_it_starts_failed_to_start_and_memory_names_it_better():
    assert first(Evidence().say(0, "start_failed")).mechanism == "gave_up"
    better = Evidence().say(0, "does_not_fit", need_tokens=9000, have_tokens=4000).say(0, "start_failed")
    assert [i.mechanism for i in [first(better)]] == ["does_not_fit"]


def test_a_code_that_follows_from_a_link_error_is_the_devices():
    found = first(Evidence("").say(0, "xid", code=45, previous=149))
    assert found.rule == "gpu_hardware_fault"
    assert first(Evidence("").say(0, "xid", code=45)).rule == "engine_crash", "alone it follows from something unknown"


def test_one_request_taken_back_at_a_full_pool_is_no_storm():
    looks = Evidence("sglang")
    for at in range(0, 40, 8):
        looks.line(at, gen=11, running=2, waiting=0, kv=1.0)
    assert named(looks.say(41, "retraction", retracted=1)) in (["unknown"], [])
    assert first(looks.say(42, "retraction", retracted=6)).rule == "preemption_storm"


def test_a_leak_of_the_pool_that_ends_the_scheduler_keeps_its_name():
    found = first(Evidence("sglang").say(0, "memory_leak_detected").say(1, "process_crashed"))
    assert (found.mechanism, found.severity) == ("kv_pool_leak", "page")


def test_few_that_run_many_that_wait_and_free_blocks_are_spoken_for_where_output_is_reserved():
    def line(engine: str, running: int) -> Evidence:
        return Evidence(engine).facts(max_num_seqs="256", engine_kind=engine).look(
            0, source="log", req_running=running, req_waiting=90, kv_usage_ratio=0.78
        )  # fmt: skip

    found = first(line("trtllm", 5))
    assert found.rule == "max_tokens_over_reservation"
    assert "long_context_kv_pressure" in candidates_of(found)
    assert "max_tokens_over_reservation" not in named(line("vllm", 5)), "vLLM reserves nothing"


def test_slots_tell_at_the_end_so_a_few_silent_seconds_are_no_hang():
    looks = Evidence("llamacpp").facts(engine_kind="llamacpp")
    looks.look(0, source="log", req_running=0, generated_tokens_per_second=0, generated_tokens_total=90)
    for at in (1, 2, 3, 4):
        looks.look(at, source="log", req_running=1, generated_tokens_total=90)
    assert named(looks) == []


def test_a_failed_kernel_is_a_crash_unless_the_kernels_log_knows_better():
    found = first(Evidence().say(0, "device_error", times=3))
    assert (found.rule, found.mechanism) == ("engine_crash", "device_error")
    assert "gpu_hardware_fault" in candidates_of(found)
    both = Evidence().say(0, "device_error").say(0, "xid", code=79)
    assert named(both) == ["gpu_hardware_fault"]
    assert first(Evidence().say(0, "device_error").say(1, "engine_dead")).mechanism == "engine_dead"


def test_a_burst_that_is_being_let_in_is_no_reservation_and_one_that_stands_is():
    def burst(waiting: list[int]) -> Evidence:
        looks = Evidence("sglang").facts(engine_kind="sglang")
        for n, queue in enumerate(waiting):
            looks.line(10 * n, prompt=4000, gen=300, running=20 + n, waiting=queue, kv=0.1)
        return looks

    assert "max_tokens_over_reservation" not in named(burst([180, 160, 140, 120]))
    assert "max_tokens_over_reservation" in named(burst([180, 185, 182, 184]))


def test_a_line_of_prompts_that_have_just_come_is_no_interference():
    just = Evidence().line(0, prompt=1400, gen=1.5, running=3, waiting=0, kv=0.07)
    for at in (1, 2, 3):  # the same line, second by second
        just.line(at, prompt=1400, gen=1.5, running=3, waiting=0, kv=0.07)
    assert named(just) == []
    again = just.line(10, prompt=1500, gen=1.2, running=3, waiting=0, kv=0.09)
    assert "prefill_decode_interference" in named(again)


def test_a_served_engine_whose_page_answers_no_more_is_gone_and_its_page_cannot_say_why():
    evidence = served()
    for at in range(20, 60, 5):
        evidence.failed(at, "an empty answer")
    found = first(evidence)
    assert (found.rule, found.mechanism, found.severity) == ("engine_crash", "gone", "page")
    assert found.confidence < 0.6
    assert found.status == "open"


@pytest.mark.parametrize("what", ["comes back", "idled", "was stopped", "failed twice"])
def test_an_engine_that_comes_back_idled_or_was_stopped_has_not_crashed(what):
    evidence = served(0.0) if what == "idled" else served()
    for at in range(20, 30 if what == "failed twice" else 60, 5):
        evidence.failed(at, "an empty answer")
    if what == "comes back":
        evidence.look(65, req_running=1, req_waiting=0, generated_tokens_total=5)
    if what == "was stopped":
        evidence.say(19, "stopped")
    assert named(evidence) == []


def served(running: float = 3.0) -> Evidence:
    evidence = Evidence()
    for at in range(0, 20, 5):
        evidence.look(at, req_running=running, req_waiting=0, generated_tokens_total=100.0 + running * at)
    return evidence


def test_a_log_that_goes_on_does_not_answer_for_the_page():
    evidence = served()
    for at in range(20, 60, 5):
        evidence.failed(at, "an empty answer").line(at + 1, running=3, gen=0.0)
    assert first(evidence).mechanism == "gone"


def test_a_worker_that_was_killed_from_outside_is_told_as_such():
    evidence = served().say(20, "process_crashed", code=-9).say(20, "engine_dead")
    assert "SIGKILL" in first(evidence).summary


def test_a_queue_that_prefill_lets_in_within_a_minute_is_no_reservation():
    looks = Evidence("sglang").facts(engine_kind="sglang")
    for n in range(3):
        looks.line(n, prompt=25_000, gen=0, running=110 + 6 * n, waiting=240, kv=0.01)
    assert "max_tokens_over_reservation" not in named(looks)


def test_prefills_that_wait_for_their_decode_side_are_no_deferred_admission():
    looks = Evidence("sglang").facts(engine_kind="sglang")
    for n in range(4):
        looks.line(
            n, prompt=1, running=0, waiting=18 + 6 * n, kv=0.0, req_waiting_deferred=18 + 6 * n,
            req_waiting_bootstrap=18 + 6 * n, req_transferring=1,
        )  # fmt: skip
    assert named(looks)[0] == "pd_transfer_stall"


def test_many_failed_transfers_on_one_page_are_named_without_a_date():
    found = first(Evidence().look(0, req_running=0, req_waiting=0, kv_transfer_failed_total=900))
    assert found.rule == "pd_transfer_stall"
    assert found.confidence <= 0.5


def test_a_few_failed_transfers_among_many_requests_are_none():
    assert named(Evidence().look(0, req_running=0, kv_transfer_failed_total=12, req_finished_total=90_000)) == []


def test_an_engine_that_never_came_up_has_no_slow_kernel():
    found = named(Evidence().say(0, "slow_kernel_fallback", method="fp8").say(1, "start_failed"))
    assert found == ["start_failure"]


def test_a_health_check_that_names_a_limit_is_throttling():
    assert first(Evidence("").say(0, "clock_held_down", cause="thermal", index=2)).rule == "gpu_throttling"


def test_a_prefill_that_does_not_fit_is_told_from_a_pool_of_nothing():
    warm_up = first(Evidence().say(0, "does_not_fit", need_tokens=8192, phase="prefill"))
    assert (warm_up.rule, warm_up.mechanism) == ("start_failure", "prefill_does_not_fit")
    assert "8192 tokens" in warm_up.summary
    assert first(Evidence().say(0, "does_not_fit", have_bytes=0)).mechanism == "no_room_for_kv"


def test_a_launcher_that_waits_is_a_start_and_one_that_has_served_since_is_none():
    waits = Evidence("tgi").say(0, "start_waits").say(20, "start_waits").say(41, "start_waits")
    assert named(waits) == ["(cold_start)"]
    assert named(waits.look(45, req_running=1)) == []
