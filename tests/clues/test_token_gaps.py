"""Long prompts that stop everybody else, from what histograms counted: two pages a minute apart, or one."""

from tests.clues.looks import Evidence, first, named


def page(evidence: Evidence, at: float, long: float, gaps: float, late: float = 20.0, waiting: float = 0.0) -> Evidence:
    """After 100 usual requests, and `long` prompts, `gaps` long gaps and `late` first tokens that came with them."""
    evidence.look(at, req_running=6, req_waiting=waiting, kv_usage_ratio=0.1, generated_tokens_total=9000.0 + at)
    evidence.buckets(at, "prompt_tokens", {100: 60, 200: 100, 1000: 100, 2000: 100, 5000: 100}, 100 + long)
    evidence.buckets(at, "itl_seconds", {0.01: 9000, 0.1: 9900, 0.3: 9900, 1: 9900}, 9900 + gaps)
    evidence.buckets(at, "ttft_seconds", {0.1: 100, 1.0: 100 + long - late, 5.0: 100 + long}, 100 + long)
    return evidence.buckets(at, "iteration_tokens", {512: 5000, 2048: 5000, 8192: 5000 + long}, 5000 + long)


def two(**numbers: float) -> Evidence:
    evidence = Evidence()
    for name in ("prompt_tokens", "itl_seconds", "ttft_seconds", "iteration_tokens"):
        evidence.buckets(0, name, {100: 0.0, 200: 0.0}, 0)  # other buckets: all of the last page counts
    evidence.look(0, req_running=6, req_waiting=0, kv_usage_ratio=0.1, generated_tokens_total=1.0)
    return page(evidence, 60, **numbers)


def test_as_many_long_gaps_as_long_prompts_and_no_queue_is_prefill_that_stops_decode():
    found = first(two(long=30, gaps=40))
    assert (found.rule, found.mechanism) == ("prefill_decode_interference", "long_prompts")
    rows = {e.signal: e.observed for e in found.evidence}
    assert rows["long prompts"] == 30
    assert rows["gaps between tokens above the bound"] == 40
    assert rows["steps with as many tokens"] == 30
    assert found.confidence == 0.6


def test_one_page_says_it_with_less_confidence_because_it_may_be_long_ago():
    found = first(page(Evidence(), 0, long=30, gaps=40))
    assert (found.rule, found.confidence) == ("prefill_decode_interference", 0.45)


def test_long_prompts_without_gaps_gaps_without_long_prompts_or_a_queue_are_not():
    assert named(two(long=30, gaps=0)) == []
    assert named(two(long=0, gaps=40)) == []
    assert "prefill_decode_interference" not in named(two(long=30, gaps=40, waiting=60))
    assert named(two(long=30, gaps=6, late=1)) == [], "nobody feels six gaps among 130 requests"


def test_preemptions_explain_gaps():
    evidence = two(long=30, gaps=40)
    for at, n in ((0, 0.0), (60, 30.0)):
        evidence.look(at, req_preempted_total=n)
    assert "prefill_decode_interference" not in named(evidence)
