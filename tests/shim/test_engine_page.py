"""The engine's pages: its own under `shim:`, and the same facts under vLLM's names with vLLM's habits."""

import re
import subprocess
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine_shim.request import Stage
from engine_shim.step import STEP_FIELDS
from engine_shim.telemetry import EngineTelemetry, build_telemetry
from engine_shim.telemetry.exposition import Histogram
from tests.shim.telling import START, Telling, info, ordinary_life, record


class Clock:
    """A time that stands until it is set."""

    def __init__(self) -> None:
        self.at = START

    def now(self) -> float:
        return self.at


def telling(vllm: bool = False, **facts: Any) -> tuple[EngineTelemetry, Telling, Clock]:
    clock = Clock()
    telemetry = build_telemetry(info(**facts), clock.now, salt=b"test", otlp_endpoint="", vllm=vllm)
    return telemetry, Telling(telemetry), clock


def samples(page: bytes) -> dict[str, float]:
    """Value by `name{other labels}`; labels that are the same everywhere are left out."""
    result = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            kept = {
                k: v
                for k, v in sample.labels.items()
                if k not in ("model_name", "engine") and "info" not in sample.name
            }
            labels = ",".join(f"{k}={v}" for k, v in sorted(kept.items()))
            result[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return result


def test_promtool_accepts_the_page():
    """Only the colon is held against it, and that is how engines name their metrics."""
    telemetry, told, _ = telling()
    ordinary_life(told)
    done = subprocess.run(["promtool", "check", "metrics"], input=telemetry.render(), capture_output=True, check=False)
    complaints = [line for line in done.stderr.decode().splitlines() if "should not contain ':'" not in line]
    assert complaints == []


def test_one_life_is_booked_where_it_belongs():
    telemetry, told, _ = telling()
    ordinary_life(told)
    page = samples(telemetry.render())
    means = {
        "time_to_first_token_seconds": 1.5, "request_queue_time_seconds": 1.0, "request_prefill_time_seconds": 0.5,
        "request_decode_time_seconds": 0.3, "e2e_request_latency_seconds": 1.8, "time_per_output_token_seconds": 0.1,
        "request_prompt_tokens": 100, "request_generation_tokens": 4, "request_max_tokens": 4,
    }  # fmt: skip
    for name, value in means.items():
        assert page[f"shim:{name}_count"] == 1
        assert page[f"shim:{name}_sum"] == pytest.approx(value)
    assert page["shim:inter_token_latency_seconds_count"] == 3
    assert page["shim:inter_token_latency_seconds_sum"] == pytest.approx(0.3)
    assert page["shim:step_seconds_count"] == 4
    assert page["shim:generation_tokens_total"] == 4
    assert page["shim:request_success_total{finished_reason=length}"] == 1
    assert "shim:request_requeue_time_seconds_sum" in page
    assert page["shim:request_requeue_time_seconds_count"] == 0


def test_gauges_are_live_between_steps():
    """While a step hangs, arrivals show as waiting and the head's wait grows; when all is done nothing runs or is held."""
    telemetry, told, clock = telling()
    first = told.arrive("first", START)
    told.enter(first, Stage.PREFILL, START + 1)
    told.step(START + 1, START + 2, running=1, kv_used_blocks=50, prefill_tokens=100)
    told.arrive("second", START + 3)
    told.arrive("third", START + 4)
    clock.at = START + 10
    page = samples(telemetry.render())
    assert page["shim:num_requests_running"] == 1
    assert page["shim:num_requests_waiting"] == 2
    assert page["shim:head_wait_seconds"] == pytest.approx(7)
    assert page["shim:kv_cache_usage_ratio"] == 0.5
    told.finish(first, START + 10, "abort")
    assert samples(telemetry.render())["shim:kv_cache_usage_ratio"] == 0


def test_a_preempted_request_waits_first_and_its_gap_spans_the_wait():
    telemetry, told, clock = telling()
    victim = told.arrive("victim", START)
    told.enter(victim, Stage.PREFILL, START)
    told.prefilled(victim, START + 1)
    told.step(START, START + 1, prefill_tokens=100)
    told.arrive("later", START + 1)
    told.preempt(victim, START + 2)
    clock.at = START + 5
    assert samples(telemetry.render())["shim:head_wait_seconds"] == pytest.approx(3)
    told.enter(victim, Stage.PREFILL, START + 6)
    told.prefilled(victim, START + 7)
    told.step(START + 6, START + 7, prefill_tokens=101)
    told.finish(victim, START + 7)
    page = samples(telemetry.render())
    assert page["shim:inter_token_latency_seconds_sum"] == pytest.approx(6)  # from the token at 1 to the one at 7
    assert page["shim:request_requeue_time_seconds_sum"] == pytest.approx(4)
    assert page["shim:request_queue_time_seconds_sum"] == 0


def test_rejections_have_a_bounded_reason():
    """The engine's own words are counted apart; a word that this engine has no use for is `other`."""
    telemetry, told, _ = telling(rejection_reasons=("too_long", "queue_full", "other", "deadline"))
    for number, reason in enumerate(("too_long", "too_long", "deadline", "", "nonsense")):
        request = told.arrive(f"r{number}", START)
        request.rejected_for = reason
        told.finish(request, START, "rejected")
    page = samples(telemetry.render())
    rejected = {k: v for k, v in page.items() if k.startswith("shim:requests_rejected_total")}
    assert list(rejected.values()) == [2, 0, 2, 1]
    assert rejected["shim:requests_rejected_total{reason=deadline}"] == 1


def test_unknown_is_absent_and_not_zero():
    """Before the first step nothing is known of fragmentation."""
    telemetry, _, _ = telling()
    page = samples(telemetry.render())
    assert "shim:kv_internal_fragmentation_ratio" not in page
    assert page["shim:num_requests_running"] == 0


def test_the_filter_gives_whole_families():
    telemetry, told, _ = telling()
    ordinary_life(told)
    page = telemetry.render(["shim:num_requests_running", "shim:step_seconds_bucket", "nobody"])
    families = re.findall(r"# TYPE (\S+)", page.decode())
    assert families == ["shim:num_requests_running", "shim:step_seconds"]
    assert telemetry.render(["nobody"]) == b""


def test_labels_are_escaped():
    """An argument may hold anything."""
    telemetry = build_telemetry(info(model='a"b\\c\nd'), lambda: START, salt=b"s", otlp_endpoint="")
    families = list(text_string_to_metric_families(telemetry.render().decode()))
    assert families[0].samples[0].labels["model_name"] == 'a"b\\c\nd'


def test_blocks_of_steps_book_what_single_steps_book():
    """Virtual time hands steps over in blocks: the pages must not differ."""
    single, _, _ = telling()
    block, _, _ = telling()
    rows = [record(step=n, begun_at=START + n, ended_at=START + n + 0.5, decode_tokens=2) for n in range(50)]
    for row in rows:
        single.step_begun(row)
        single.step_ended(row)
    block.steps(dict(zip(STEP_FIELDS, np.array(rows).T, strict=True)))
    assert single.render() == block.render()


def test_a_restart_begins_at_zero():
    telemetry, told, _ = telling()
    ordinary_life(told)
    telemetry.restarted(START + 100)
    page = samples(telemetry.render())
    assert page["shim:generation_tokens_total"] == 0
    assert page["process_start_time_seconds"] == START + 100


def test_many_observations_at_once_are_the_same_as_one_by_one():
    bounds = (0.1, 0.2, 0.5)
    one, many = Histogram(bounds), Histogram(bounds)
    values = np.array([0.05, 0.1, 0.15, 0.5, 0.7])
    weights = np.array([1, 2, 3, 4, 5])
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        one.observe(value, weight)
    many.observe_many(values, weights)
    assert many.cumulative() == one.cumulative() == [3, 6, 10, 15]
    assert many.sum == pytest.approx(one.sum)


VLLM_NAMES = {
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:num_preemptions",
    "vllm:num_requests_waiting_by_reason", "vllm:prompt_tokens", "vllm:generation_tokens", "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits", "vllm:request_success", "vllm:time_to_first_token_seconds", "vllm:cache_config_info",
    "vllm:inter_token_latency_seconds", "vllm:request_time_per_output_token_seconds", "vllm:iteration_tokens_total",
    "vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds", "vllm:request_inference_time_seconds",
    "vllm:request_prefill_time_seconds", "vllm:request_decode_time_seconds", "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens", "vllm:request_params_max_tokens", "vllm:request_num_preemptions",
    "process_start_time_seconds",
}  # fmt: skip


def test_the_vllm_page_has_its_names_and_labels():
    telemetry, told, _ = telling(vllm=True)
    ordinary_life(told)
    families = list(text_string_to_metric_families(telemetry.render().decode()))
    assert {f.name for f in families} == VLLM_NAMES
    for family in families:
        for sample in family.samples:
            if family.name.startswith("vllm:") and not family.name.endswith("_info"):
                assert sample.labels["engine"] == "0"
                assert sample.labels["model_name"] == "7b"


def test_the_vllm_page_shows_the_last_finished_step():
    """Its waiting count does not see who arrives while a step runs."""
    telemetry, told, _ = telling(vllm=True)
    first = told.arrive("first", START)
    told.enter(first, Stage.PREFILL, START)
    told.step(START, START + 1, running=1, waiting=0, kv_used_blocks=10)
    told.arrive("second", START + 2)
    page = samples(telemetry.render())
    assert page["vllm:num_requests_running"] == 1
    assert page["vllm:num_requests_waiting"] == 0


def test_the_vllm_page_counts_a_preemption_with_the_next_token():
    telemetry, told, _ = telling(vllm=True)
    victim = told.arrive("victim", START)
    told.enter(victim, Stage.PREFILL, START)
    told.prefilled(victim, START + 1)
    told.preempt(victim, START + 2)
    assert samples(telemetry.render())["vllm:num_preemptions_total"] == 0
    told.enter(victim, Stage.PREFILL, START + 5)
    told.prefilled(victim, START + 6)
    assert samples(telemetry.render())["vllm:num_preemptions_total"] == 1


def test_the_vllm_page_books_a_prompt_when_its_prefill_ends():
    """Chunks before the last are invisible; then the whole prompt falls into one iteration, with its first token."""
    telemetry, told, _ = telling(vllm=True)
    request = told.arrive("long", START, prompt=100)
    told.enter(request, Stage.PREFILL, START)
    told.step(START, START + 1, prefill_tokens=60)
    assert samples(telemetry.render())["vllm:prompt_tokens_total"] == 0
    told.prefilled(request, START + 2)
    told.step(START + 1, START + 2, prefill_tokens=40)
    page = samples(telemetry.render())
    assert page["vllm:prompt_tokens_total"] == 100
    assert page["vllm:iteration_tokens_total_sum"] == 101
    assert page["vllm:iteration_tokens_total_count"] == 1


def test_the_vllm_page_does_not_count_disconnects():
    telemetry, told, _ = telling(vllm=True)
    told.finish(told.arrive("gone", START), START + 1, "abort")
    page = samples(telemetry.render())
    assert sum(v for k, v in page.items() if k.startswith("vllm:request_success_total")) == 0
