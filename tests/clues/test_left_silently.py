"""Clients that disconnect are in no counter of vLLM: first tokens without an end show them."""

from tests.clues.looks import Evidence, first, named


def page(evidence: Evidence, at: float, first_tokens: float, done: float, running: float, waiting: float) -> Evidence:
    evidence.buckets(at, "ttft_seconds", {0.1: first_tokens, 1.0: first_tokens}, first_tokens)
    return evidence.look(
        at, req_running=running, req_waiting=waiting, req_finished_total=done, req_aborted_total=0.0,
        generated_tokens_total=100 * at, kv_usage_ratio=0.1,
    )  # fmt: skip


def watched(first_tokens: float, done: float, running: float = 2.0, waiting: float = 0.0) -> Evidence:
    evidence = page(Evidence(), 0, 100.0, 100.0, 0.0, 0.0)
    for n in (1, 2, 3):
        page(evidence, 20.0 * n, 100 + n / 3 * first_tokens, 100 + n / 3 * done, running, waiting)
    return evidence


def test_most_of_them_gone_without_a_queue_is_worth_a_remark():
    found = first(watched(first_tokens=242, done=90))
    assert (found.rule, found.severity) == ("retry_storm", "info")
    assert found.summary.startswith("150 requests were given up by their clients against 90")


def test_with_a_queue_it_is_load():
    assert named(watched(first_tokens=242, done=90, waiting=10)) == ["retry_storm"]


def test_those_who_still_run_have_not_left():
    assert named(watched(first_tokens=242, done=90, running=152)) == []
    assert named(watched(first_tokens=100, done=98)) == []
