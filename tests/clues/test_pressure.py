"""A full pool: long generations, overload, retraction, recomputation; and a pool that is full of reusable prefixes."""

from tests.clues.looks import Evidence, candidates_of, first, named


def full(
    prompt: float, waiting: tuple[float, ...], running: float = 30.0, kv: float = 0.98, gen: float = 700.0
) -> Evidence:
    evidence = Evidence()
    for n, w in enumerate(waiting):
        evidence.line(10 * n, running=running, waiting=w, kv=kv, gen=gen, prompt=prompt)
    return evidence


def test_nobody_is_let_in_because_those_who_run_decode_on():
    found = first(full(0.0, (10, 22, 31)))
    assert found.rule == "long_context_kv_pressure"
    assert "runaway_generation" in candidates_of(found)
    assert "engine_hang" in {r.rule for r in found.ruled_out}


def test_requests_come_and_go_and_more_come():
    found = first(full(4000.0, (10, 22, 31, 45), running=120))
    assert found.rule == "overload"


def test_one_look_at_a_full_pool_does_not_decide():
    found = first(Evidence().look(0, req_running=80, req_waiting=60, kv_usage_ratio=0.99))
    assert found.rule == "unknown"
    assert {"overload", "long_context_kv_pressure"} <= candidates_of(found)


def test_a_few_huge_requests_hold_the_pool_by_the_numbers():
    found = first(
        Evidence("sglang")
        .line(0, running=3, waiting=4, kv=1.0, gen=120.0)
        .line(20, running=3, waiting=4, kv=1.0, gen=119.0)
    )
    assert found.rule == "long_context_kv_pressure"


def test_a_full_pool_without_a_queue_is_no_pressure():
    evidence = Evidence("sglang")
    for n in range(5):
        evidence.line(10 * n, running=36 - n % 2, waiting=0, kv=0.96, gen=800.0)
    assert named(evidence) == []


def test_a_pool_that_fills_with_no_arrivals_is_a_forecast_and_no_more():
    evidence = Evidence()
    for n in range(6):
        evidence.line(10 * n, running=6, waiting=0, kv=0.85 + 0.01 * n, gen=200.0, prompt=0.0)
    assert named(evidence) == ["(long_context_kv_pressure)"]


def test_many_short_requests_at_a_high_and_steady_level_are_no_forecast():
    evidence = Evidence()
    for n in range(6):
        evidence.line(10 * n, running=200, waiting=0, kv=0.85 + 0.01 * n, gen=2000.0, prompt=0.0)
    assert named(evidence) == []


def test_tokens_collapse_after_a_retraction():
    evidence = Evidence("sglang")
    evidence.line(0, running=5, waiting=2, kv=1.0, gen=400.0).say(5, "retraction", retracted=1)
    for n in range(1, 5):
        evidence.line(5 + 10 * n, running=4, waiting=3, kv=0.99, gen=28.0)
    found = first(evidence)
    assert found.rule == "preemption_storm"
    assert "long_context_kv_pressure" in {s.rule for s in found.symptoms} | candidates_of(found)


def test_more_preemptions_than_completions_are_a_livelock():
    evidence = Evidence()
    for n in range(4):
        evidence.look(
            15 * n,
            req_running=8,
            req_waiting=6,
            kv_usage_ratio=0.97,
            req_preempted_total=100 + 30 * n,
            req_finished_total=50,
            generated_tokens_total=100 * n,
        )
    found = first(evidence)
    assert (found.rule, found.mechanism) == ("preemption_storm", "livelock")


def test_few_preemptions_among_many_completions_are_healthy():
    evidence = Evidence()
    for n in range(4):
        evidence.look(
            15 * n,
            req_running=40,
            req_waiting=0,
            kv_usage_ratio=0.9,
            req_preempted_total=100 + 4 * n,
            req_finished_total=500 + 60 * n,
            generated_tokens_total=9000 * n,
        )
    assert named(evidence) == []


def test_prompts_computed_while_nobody_arrives_are_computed_again():
    evidence = Evidence()
    for n in range(3):
        evidence.line(10 * n, running=8, waiting=0, kv=0.95 + 0.02 * n, gen=240.0, prompt=0.0)
    evidence.line(30, running=5, waiting=3, kv=0.85, gen=70.0, prompt=5200.0)
    assert first(evidence).rule == "preemption_storm"


def test_swapping_that_stalls_is_an_offload():
    evidence = Evidence()
    evidence.line(0, running=9, waiting=0, kv=0.97, gen=300.0).say(4, "preemption", mode="swap", total=51)
    evidence.line(10, running=4, waiting=5, kv=0.99, gen=20.0).line(20, running=4, waiting=5, kv=0.99, gen=18.0)
    assert first(evidence).rule == "kv_offload_stall"


def test_a_queue_that_refuses_is_overload_and_its_probe_is_no_crash():
    evidence = Evidence("tgi").say(0, "queue_full", times=40).say(5, "health_failed", times=3).say(30, "restarted")
    found = first(evidence)
    assert (found.rule, found.mechanism) == ("overload", "probe_restarts")


def test_arrivals_that_double_before_the_queue():
    evidence = Evidence()
    arrived = 0.0
    for n in range(12):
        arrived += 20.0 if n < 6 else 60.0
        evidence.look(
            5 * n,
            req_running=40,
            req_waiting=0 if n < 7 else 30 * (n - 6),
            kv_usage_ratio=0.5,
            req_arrived_total=arrived,
            req_finished_total=20.0 * n,
            generated_tokens_total=5000 * n,
        )
    assert first(evidence).rule == "traffic_surge"


def test_batches_that_find_no_space_in_the_cache():
    assert first(Evidence("llamacpp").say(0, "kv_retry", times=5)).rule == "long_context_kv_pressure"
    assert named(Evidence("llamacpp").say(0, "kv_retry")) == []


def test_requests_that_all_waited_longer_than_they_were_served():
    late, quick = Evidence("tgi"), Evidence("tgi")
    for n in range(5):
        late.say(n, "request", queue_seconds=31.0 + n, inference_seconds=1.4)
        quick.say(n, "request", queue_seconds=0.02, inference_seconds=1.4)
    assert first(late).rule == "overload"
    assert named(quick) == []


def test_one_look_at_a_crowd_before_a_small_batch_and_an_empty_cache_is_overload():
    found = first(Evidence().look(0, req_running=8, req_waiting=127, kv_usage_ratio=0.01))
    assert (found.rule, found.mechanism) == ("overload", "batch_full")
    assert found.confidence < 0.5, "one look"
    assert [e.op for e in found.evidence if e.signal == "req_waiting"] == [""], "one look has no earlier value"


def test_one_look_at_a_short_queue_before_a_small_batch_does_not_decide():
    assert first(Evidence().look(0, req_running=8, req_waiting=11, kv_usage_ratio=0.01)).rule == "unknown"


def test_the_rival_of_a_full_batch_is_what_that_engine_can_do():
    def rivals(kind: str) -> set[str]:
        return candidates_of(first(Evidence(kind).look(0, req_running=8, req_waiting=127, kv_usage_ratio=0.01)))

    assert "max_tokens_over_reservation" in rivals("lmdeploy")
    assert not any("max_tokens_over_reservation" in rivals(kind) for kind in ("vllm", "llamacpp"))


def test_one_look_at_a_crowd_before_slots_needs_no_pool_to_be_overload():
    assert first(Evidence("llamacpp").look(0, req_running=4, req_waiting=149)).rule == "overload"
    assert first(Evidence("sglang").look(0, req_running=4, req_waiting=149)).rule == "unknown"


def test_as_many_more_wait_as_fewer_run_at_a_full_pool_are_taken_back():
    evidence = Evidence()
    for n, running in enumerate((120, 114, 109, 103, 96)):
        evidence.line(5 * n, prompt=0, gen=1900, running=running, waiting=400 + 120 - running, kv=0.99)
    found = first(evidence)
    assert found.rule == "preemption_storm"
    assert "long_context_kv_pressure" in candidates_of(found) | {s.rule for s in found.symptoms}


def test_requests_that_end_at_a_full_pool_are_not_taken_back():
    evidence = Evidence()
    for n, running in enumerate((120, 114, 109, 103, 96)):
        evidence.line(5 * n, prompt=0, gen=1900, running=running, waiting=400, kv=0.99)
    assert first(evidence).rule != "preemption_storm"
