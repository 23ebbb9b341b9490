"""Hangs and their look-alikes: what must move decides, whatever else coincides."""

from gpuwatch.model import Subject
from tests.clues.looks import Evidence, candidates_of, first, named


def test_tokens_that_stop_in_a_saturated_phase_are_a_hang():
    evidence = Evidence().line(0, running=30, waiting=80, kv=0.99, gen=140.0, prompt=300.0)
    for n in range(1, 8):
        evidence.line(10 * n, running=30, waiting=80 + n, kv=0.99, gen=0.0, prompt=0.0)
    found = first(evidence)
    assert (found.rule, found.severity) == ("engine_hang", "page")
    assert "overload" in {r.rule for r in found.ruled_out}


def test_a_batch_counter_that_stands_still_while_the_queue_grows():
    evidence = Evidence("tgi")
    for n in range(2):
        evidence.look(70 * n, req_running=6, req_waiting=5 + 40 * n, steps_total=7777)
    assert first(evidence).rule == "engine_hang"


def test_a_batch_counter_that_moves_is_saturation():
    evidence = Evidence("tgi")
    for n in range(4):
        evidence.look(30 * n, req_running=6, req_waiting=5 + 40 * n, steps_total=7777 + 900 * n)
    assert "engine_hang" not in named(evidence)


def test_counters_that_move_at_the_end_of_a_request_prove_nothing_by_standing_still():
    evidence = Evidence("llamacpp")
    for n in range(3):
        evidence.look(10 * n, req_running=1, req_waiting=0, generated_tokens_total=4000, kv_usage_ratio=0.2)
    assert named(evidence) == []


def test_which_counters_those_are_is_the_dialect_s_to_say():
    late, live = Evidence("sglang").facts(at_finish="generated_tokens_total,x"), Evidence("sglang").facts(at_finish="x")
    for evidence in (late, live):
        for n in range(4):
            evidence.look(10 * n, req_running=3, req_waiting=0, generated_tokens_total=4000, kv_usage_ratio=0.2)
    assert named(late) == []
    assert first(live).rule == "engine_hang"


def test_one_line_without_tokens_may_be_a_long_prefill():
    found = named(
        Evidence()
        .line(0, running=1, waiting=0, kv=0.2, gen=30.0)
        .line(10, running=1, waiting=0, kv=0.2, gen=0.0, prompt=0.0)
    )
    assert found in (["unknown"], [], ["engine_hang"])
    evidence = (
        Evidence()
        .line(0, running=1, waiting=0, kv=0.2, gen=30.0)
        .line(10, running=1, waiting=0, kv=0.2, gen=0.0, prompt=0.0)
    )
    evidence.gpu(10, dram=0.6, sm=0.9)
    assert named(evidence) == []


def group(*utils: float, **idle: float) -> Evidence:
    evidence = Evidence("")
    for n, util in enumerate(utils):
        evidence.gpu(0, f"GPU-{n}", util=util, **(idle if util < 0.5 else dict.fromkeys(idle, 7e10)))
    return evidence


def test_three_devices_spin_for_one_that_never_came():
    found = first(group(1.0, 1.0, 0.0, 1.0))
    assert (found.rule, found.mechanism) == ("engine_hang", "collective")
    assert "straggler_gpu" in candidates_of(found)


def test_devices_without_a_model_are_not_part_of_the_group():
    assert named(group(1.0, 1.0, 0.0, 1.0, used=5e8)) == []


def test_a_group_that_makes_tokens_has_all_its_ranks():
    evidence = group(1.0, 1.0, 0.0, 1.0)
    for n in range(3):
        evidence.look(10 * n, req_running=8, req_waiting=0, generated_tokens_total=1000 * n, kv_usage_ratio=0.3)
    assert named(evidence) == []


def test_all_devices_at_work_are_no_incident():
    assert named(group(0.97, 0.99, 0.95, 0.98)) == []


def test_a_collective_that_timed_out_names_itself():
    evidence = Evidence().say(0, "collective_timeout", rank=2, operation="allreduce", seconds=600).say(2, "engine_dead")
    found = first(evidence)
    assert (found.rule, found.mechanism) == ("engine_hang", "collective")
    assert "engine_crash" in {s.rule for s in found.symptoms}


def test_a_worker_that_waits_during_a_compilation_is_a_start():
    evidence = Evidence().say(0, "weights_loaded", seconds=60).say(90, "broadcast_block_wait", seconds=60)
    found = first(evidence)
    assert found.rule == "unknown"
    assert "cold_start" in candidates_of(found)


def test_a_pause_after_which_tokens_flow_is_over():
    evidence = Evidence().say(0, "broadcast_block_wait", seconds=60)
    for n in range(3):
        evidence.line(20 + 10 * n, running=3, waiting=0, kv=0.1, gen=80.0)
    assert named(evidence) == []


def test_a_frozen_engine_behind_an_idle_device_is_surer():
    def frozen() -> Evidence:
        evidence = Evidence()
        for n in range(4):
            evidence.look(
                10 * n, req_running=5, req_waiting=2, kv_usage_ratio=0.4, generated_tokens_total=100 if n else 50
            )
        return evidence

    alone, beside = first(frozen()), first(frozen().gpu(0, util=0.0).gpu(30, util=0.0))
    assert alone.rule == beside.rule == "engine_hang"
    assert beside.confidence > alone.confidence


def test_a_restart_is_told_from_a_hang_by_an_event_and_says_nothing_alone():
    evidence = Evidence().look(0, req_running=2, req_waiting=0, generated_tokens_total=900)
    evidence.event(5, "restart", Subject("e1")).look(10, req_running=2, req_waiting=0, generated_tokens_total=20)
    assert named(evidence) == []
