"""Slow without a queue: prefill between decodes, kernels, drafts, a new version; and load that is merely mixed."""

import pytest

from gpuwatch.model import Subject
from tests.clues.looks import Evidence, candidates_of, first, judged, named


def test_prefill_chunks_starve_those_in_decode():
    evidence = Evidence().line(0, running=2, waiting=0, kv=0.04, gen=64.0, prompt=0.0)
    for n in range(1, 4):
        evidence.line(10 * n, running=3, waiting=0, kv=0.05 + 0.02 * n, gen=1.2, prompt=2100.0)
    found = first(evidence)
    assert found.rule == "prefill_decode_interference"
    assert {"engine_hang", "overload"} <= {r.rule for r in found.ruled_out}


def test_mixed_load_at_a_good_pace_is_no_incident():
    evidence = Evidence()
    for n in range(4):
        evidence.line(10 * n, running=38, waiting=0, kv=0.6, gen=840.0, prompt=1400.0 * (n % 2))
    assert named(evidence) == []


def test_steps_of_known_content_show_the_chunk():
    evidence = Evidence().say(0, "step", seconds=0.02, context_tokens=0, generation_tokens=6)
    evidence.say(1, "step", seconds=0.9, context_tokens=8192, generation_tokens=6)
    assert first(evidence).rule == "prefill_decode_interference"


def test_a_warning_about_the_kernel_names_the_fallback():
    found = first(Evidence().say(0, "slow_kernel_fallback", method="awq"))
    assert (found.rule, found.mechanism) == ("quantization_fallback", "awq")


def drafts(share: float, each: float, plain: float) -> Evidence:
    evidence = Evidence()
    for n in range(3):
        evidence.line(10 * n, running=1, waiting=0, kv=0.01, gen=plain)
    evidence.say(29, "restarted")
    for n in range(3):
        evidence.line(30 + 10 * n, running=1, waiting=0, kv=0.01, gen=each)
        evidence.say(30 + 10 * n, "spec_decode", mean_acceptance_length=1.9, acceptance_ratio=share)
    return evidence


def test_accepted_drafts_that_are_slower_do_not_pay():
    found = first(drafts(0.94, 110.0, 250.0))
    assert (found.rule, found.mechanism) == ("spec_decode_regression", "overhead")


def test_drafts_that_are_faster_pay():
    assert named(drafts(0.7, 250.0, 140.0)) == []


def test_high_acceptance_alone_proves_nothing_and_low_acceptance_is_waste():
    high = Evidence().line(0, running=1, waiting=0, gen=128.0).say(0, "spec_decode", acceptance_ratio=0.96)
    low = Evidence().line(0, running=1, waiting=0, gen=128.0).say(0, "spec_decode", acceptance_ratio=0.11)
    assert named(high) == []
    assert first(low).rule == "spec_decode_regression"


def test_a_new_version_that_is_slower_at_the_same_load():
    evidence = Evidence()
    for n in range(8):
        each = 70.0 if n < 4 else 15.0
        evidence.line(20 * n, running=8, waiting=0, kv=0.1, gen=8 * each, prompt=100.0)
    evidence.event(70, "version", Subject("e1"), {"what": "1.0 → 1.1"})
    found = first(evidence)
    assert found.rule == "step_time_regression"
    assert "quantization_fallback" in candidates_of(found)


def test_a_new_version_that_is_as_fast_is_no_incident():
    evidence = Evidence()
    for n in range(8):
        evidence.line(20 * n, running=8, waiting=0, kv=0.1, gen=560.0, prompt=100.0)
    assert named(evidence.event(70, "version", Subject("e1"), {"what": "1.0 → 1.1"})) == []


def test_no_hits_are_a_fact_and_no_incident():
    found = first(Evidence().look(0, prefix_query_tokens_total=20_000, prefix_hit_tokens_total=0))
    assert (found.rule, found.severity) == ("prefix_cache_collapse", "info")
    assert "stale_telemetry" in candidates_of(found)


def test_a_large_block_explains_missing_hits():
    found = first(
        Evidence().facts(kv_block_tokens=1056).look(0, prefix_query_tokens_total=20_000, prefix_hit_tokens_total=0)
    )
    assert found.mechanism == "block_larger_than_prefix"


def test_a_few_lookups_without_a_hit_are_nothing():
    assert named(Evidence().look(0, prefix_query_tokens_total=300, prefix_hit_tokens_total=0)) == []


def test_a_hit_ratio_that_falls_while_prompts_go_on():
    evidence = Evidence()
    for n in range(12):
        evidence.line(10 * n, running=20, waiting=0, kv=0.6, gen=500.0, prompt=900.0, hit=0.8 if n < 6 else 0.1)
    assert first(evidence).rule == "prefix_cache_collapse"


@pytest.mark.parametrize(("gen", "rules"), [(0.4, ["unknown"]), (16.0, [])])
def test_tokens_that_trickle_for_no_reason_are_said_and_not_named(gen, rules):
    evidence = Evidence()
    for n in range(4):
        evidence.line(10 * n, prompt=0, gen=gen, running=2, waiting=0, kv=0.01)
    assert named(evidence) == rules


@pytest.mark.parametrize(("prompt", "waiting"), [(900, 0), (0, 9)])
def test_prompts_or_a_queue_beside_slow_tokens_are_another_picture(prompt, waiting):
    evidence = Evidence()
    for n in range(4):
        evidence.line(10 * n, prompt=prompt, gen=0.4, running=2, waiting=waiting, kv=0.01)
    assert all("step_time_regression" not in candidates_of(i) for i in judged(evidence))


def test_a_slot_that_stalls_while_another_computes_its_prompt_is_interference():
    evidence = Evidence("llamacpp")
    for n in range(4):
        evidence.line(3 * n, running=1, gen=40.0, prompt=0.0)
    for n in range(4, 8):
        evidence.line(3 * n, running=2, gen=1.2, prompt=2000.0 + n)
    assert first(evidence).rule == "prefill_decode_interference"
