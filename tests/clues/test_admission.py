"""A queue with room, and the healthy pictures beside it: who waits for what, as far as short evidence shows it."""

import pytest

from tests.clues.looks import Evidence, candidates_of, first, named


def nothing_runs(kv: float, looks: int = 3, waiting: float = 4.0, **more: float) -> Evidence:
    evidence = Evidence()
    for n in range(looks):
        evidence.look(20 * n, req_running=0, req_waiting=waiting, kv_usage_ratio=kv, generated_tokens_total=500, **more)
    return evidence


def test_a_head_larger_than_the_pool_can_never_run():
    found = first(nothing_runs(0.0).facts(kv_capacity_tokens=50_000, max_model_len=131_072))
    assert (found.rule, found.severity) == ("unschedulable_request", "page")
    assert {"long_context_kv_pressure", "overload"} <= {r.rule for r in found.ruled_out}


def test_a_pool_that_holds_every_request_leaves_the_scheduler():
    found = first(nothing_runs(0.0).facts(kv_capacity_tokens=500_000, max_model_len=32_768))
    assert (found.rule, found.mechanism) == ("engine_hang", "admits_nobody")
    assert "unschedulable_request" in {r.rule for r in found.ruled_out}


def test_without_sizes_both_readings_are_named():
    found = first(nothing_runs(0.0, looks=1))
    assert candidates_of(found) >= {"engine_hang", "unschedulable_request"}
    assert found.confidence <= 0.6


def test_a_refusal_that_names_need_and_pool_is_proof():
    evidence = Evidence().say(0, "unschedulable", need_tokens=120_000, have_tokens=80_000)
    assert first(evidence).rule == "unschedulable_request"


def test_parked_requests_hold_the_cache_while_nothing_runs():
    found = first(nothing_runs(0.95))
    assert (found.rule, found.mechanism) == ("engine_hang", "parked_requests_hold_kv")
    assert "admission_deferred" in candidates_of(found)


def test_an_idle_engine_is_no_incident():
    evidence = Evidence()
    for n in range(4):
        evidence.look(15 * n, req_running=0, req_waiting=0, kv_usage_ratio=0.0, generated_tokens_total=9)
    assert named(evidence) == []


def queue_with_room(
    waiting: float, running: float, kv: float, dialect: str, looks: int = 1, gen: float = 300.0, **more: float
) -> Evidence:
    evidence = Evidence(dialect)
    for n in range(looks):
        evidence.line(10 * n, running=running, waiting=waiting, kv=kv, gen=gen, prompt=0.0, **more)
    return evidence


@pytest.mark.parametrize("dialect", ["sglang", "tgi", "trtllm"])
def test_an_engine_that_reserves_output_queues_before_an_empty_cache(dialect):
    found = first(queue_with_room(300, 150, 0.22, dialect))
    assert found.rule == "max_tokens_over_reservation"
    assert "raise the batch limit" in " ".join(found.not_now)


def test_the_same_picture_on_an_engine_that_reserves_nothing_is_something_else():
    found = first(queue_with_room(300, 150, 0.22, "vllm", looks=3))
    assert found.rule != "max_tokens_over_reservation"


def test_asked_and_answered_lengths_show_the_waste():
    evidence = queue_with_room(40, 30, 0.3, "sglang", looks=2)
    evidence.histogram(0, "max_tokens_requested", 4096 * 500, 500).histogram(0, "output_tokens", 90 * 500, 500)
    found = first(evidence)
    assert found.rule == "max_tokens_over_reservation"
    assert found.confidence > first(queue_with_room(40, 30, 0.3, "sglang", looks=2)).confidence


def test_a_blocked_head_is_not_a_cache_that_collapses():
    evidence = Evidence()
    for n, hit in enumerate((0.30, 0.21, 0.09, 0.0)):
        evidence.line(10 * n, running=6, waiting=1, kv=0.62, gen=95.0, prompt=0.0, hit=hit)
    found = first(evidence)
    assert found.rule == "head_of_line_blocking"
    assert "prefix_cache_collapse" in {r.rule for r in found.ruled_out}


def test_a_short_queue_that_moves_is_no_incident():
    evidence = Evidence()
    for n in range(4):
        evidence.line(10 * n, running=30 + n % 2, waiting=n % 2, kv=0.5, gen=900.0, prompt=2000.0)
    assert named(evidence) == []


def test_one_busy_look_with_a_few_waiting_is_no_incident():
    assert named(Evidence().look(0, req_running=60, req_waiting=3, kv_usage_ratio=0.55)) == []


def deferred(**more: float) -> Evidence:
    evidence = Evidence()
    for n in range(3):
        evidence.look(15 * n, req_running=6, req_waiting=20, req_waiting_deferred=19, kv_usage_ratio=0.2, **more)
    return evidence


def test_requests_that_wait_for_a_grammar_do_not_wait_for_room():
    found = first(deferred(req_waiting_grammar=19))
    assert (found.rule, found.mechanism) == ("admission_deferred", "grammar")


def test_adapters_that_take_turns():
    evidence = Evidence("sglang")
    for n in range(2):
        evidence.look(
            10 * n,
            req_running=5,
            req_waiting=30,
            kv_usage_ratio=0.25,
            lora_slots=4,
            lora_running_adapters=4,
            lora_waiting_adapters=5,
            generated_tokens_total=100 * n,
        )
    found = first(evidence)
    assert (found.rule, found.mechanism) == ("admission_deferred", "adapter")


def test_all_adapters_in_their_slots_are_no_incident():
    evidence = Evidence("sglang").look(
        0, req_running=5, req_waiting=0, lora_slots=8, lora_slots_used=8, lora_running_adapters=5
    )
    assert named(evidence) == []


def test_a_grammar_that_waits_alone_in_the_queue():
    evidence = Evidence("tgi").say(0, "grammar", queue_seconds=74.0, validation_seconds=0.005)
    evidence.say(1, "request", queue_seconds=0.01)
    found = first(evidence)
    assert (found.rule, found.mechanism) == ("admission_deferred", "grammar")


def test_a_grammar_that_waits_no_longer_than_others_is_no_incident():
    assert named(Evidence("tgi").say(0, "grammar", queue_seconds=0.02)) == []


def test_a_throttled_container_explains_the_grammar_queue():
    evidence = deferred().gpu(0, sm=0.1).look(31, cgroup_cpu_throttled_ratio=0.97)
    found = first(evidence)
    assert found.rule == "host_cpu_throttling"
    assert "admission_deferred" in {s.rule for s in found.symptoms}


def test_one_line_of_a_log_speaks_for_its_interval():
    line = {"prompt": 0, "gen": 45, "running": 1, "waiting": 3, "kv": 0.03}
    assert named(Evidence().facts(engine_kind="vllm").line(0, **line)) == ["unknown"]
    assert named(Evidence().facts(engine_kind="vllm").line(0, **line | {"prompt": 700})) == []
    assert named(Evidence().look(0, req_running=1, req_waiting=3, kv_usage_ratio=0.03)) == [], "a page does not"
