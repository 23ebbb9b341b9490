"""How the numbers of engines lie, one test a lie: what the agent makes of it instead of believing."""

import math

import numpy as np
import pytest

from gpuwatch.dialects import all_dialects
from gpuwatch.model import Batch, Missing, Subject
from gpuwatch.pipeline import Pipeline
from gpuwatch.questions.progress import stall
from gpuwatch.sources.page.engine_page import EnginePage
from tests.dialects.reading_pages import captured, facts_of, flat, page_of, read

E = Subject(engine="e")


def watched(pages, dialect="auto", every_s=1.0):
    """A pipeline that has read these pages one after the other, and the engine's window now."""
    page, pipeline = EnginePage("e", dialect), Pipeline()
    findings = []
    for n, body in enumerate(pages):
        at = 1_764_000_000.0 + n * every_s
        report = page.read(body, at)
        batch = Batch(
            "page:e", "engine", E, at, frames=report.frames, histograms=report.histograms, events=report.events,
            info=report.info,
        )  # fmt: skip
        findings = pipeline.step(at + 0.5, [batch]).findings
    return pipeline, findings


def window(pipeline):
    return pipeline._judged[E.key].window


def vllm(tokens=1000, steps=100, running=4, waiting=0, **more):
    lines = {
        "num_requests_running": running, "num_requests_waiting": waiting, "kv_cache_usage_perc": 0.5,
        "generation_tokens_total": tokens, "prompt_tokens_total": 5000, "iteration_tokens_total_count": steps, **more,
    }  # fmt: skip
    return page_of(*(f'vllm:{name}{{engine="0",model_name="m"}} {value}' for name, value in lines.items()))


# T1 and its kin: gauges that freeze while the page answers


def test_frozen_gauges_with_flat_counters_are_a_stall_and_no_load():
    """A hang leaves running, waiting and KV at their last good values; only what must move tells."""
    flowing = [vllm(tokens=1000 + 40 * n, steps=100 + n) for n in range(20)]
    pipeline, _ = watched([*flowing, *[flowing[-1]] * 75])
    assert window(pipeline).once(stall).for_s == pytest.approx(75, abs=2)
    assert [i.rule for i in pipeline.open()] == ["engine_hang"]


def test_a_page_that_freezes_without_requests_is_idle():
    pipeline, findings = watched([vllm(running=0)] * 90)
    assert window(pipeline).once(stall).for_s == 0
    assert findings == ()


@pytest.mark.parametrize("name", ["llamacpp", "trtllm", "sglang", "tgi"])
def test_tokens_that_are_counted_when_a_request_ends_never_prove_a_stall(name):
    """T18, T23, T27: their token counters stand still through every long generation."""
    dialect = all_dialects()[name]
    late = [r.quality for r in dialect.signals["generated_tokens_total"].choices]
    assert late[-1] == "at_finish"


def test_an_engine_that_only_counts_at_the_end_is_not_called_hung():
    lines = ("trtllm_num_requests_running 4", "trtllm_num_requests_waiting 0", "trtllm_generation_tokens_total 70")
    pipeline, findings = watched([page_of(*lines)] * 90)
    with pytest.raises(Missing, match="nothing that must move"):
        window(pipeline).once(stall)
    assert findings == ()
    assert [b.rule for b in pipeline.blind if b.rule == "engine_hang"] == ["engine_hang"]


def test_an_engine_that_counts_steps_is_called_hung_whatever_its_tokens_do():
    """TGI's queue grows while the decodes of its batch stand still: a hang, not a load."""
    pages = [
        page_of(f"tgi_queue_size {12 + n}", "tgi_batch_current_size 8",
                f'tgi_batch_inference_count{{method="decode"}} {48211 + min(n, 20)}')
        for n in range(100)
    ]  # fmt: skip
    pipeline, _ = watched(pages)
    assert window(pipeline).once(stall).for_s > 70
    assert "engine_hang" in [i.rule for i in pipeline.open()]


def test_live_tokens_are_preferred_and_the_change_of_source_is_told():
    """T18: SGLang's realtime tokens move; before they appear the counter of finished requests stands in."""
    page = EnginePage("e")
    old = page.read(page_of("sglang:num_running_reqs 3", "sglang:generation_tokens_total 500"), 1.0)
    assert "generated_tokens_total" in facts_of(old)[0]["at_finish"]
    new = page.read(
        page_of("sglang:num_running_reqs 3", "sglang:generation_tokens_total 500",
                'sglang:realtime_tokens_total{mode="decode"} 900'), 2.0,
    )  # fmt: skip
    assert flat(new)[0]["generated_tokens_total"] == 900
    assert facts_of(new)[0]["at_finish"] == "", "what was said before is taken back"


def test_gauges_that_may_be_old_are_marked():
    """T15, T23: SGLang reports every 40 decode steps, TensorRT-LLM when a request completes."""
    for name in ("sglang-0.5.18-synthetic", "trtllm-1.3.0-synthetic"):
        assert "req_running" in facts_of(EnginePage("e").read(captured(name), 1.0))[0]["stale_possible"]


def test_what_is_told_of_quality_fits_into_a_fact():
    for dialect in all_dialects().values():
        readings = [(name, choice) for name, r in dialect.signals.items() for choice in r.choices]
        for quality in ("at_finish", "stale_possible", "lifetime"):
            assert len(",".join({name for name, choice in readings if choice.quality == quality})) <= 256


# Counters


def test_counters_of_several_processes_behind_one_port_are_not_believed():
    """T13: they go down and up again with each answer; no restart, and no rate until a quiet minute has passed."""
    page = EnginePage("e")
    reports = [
        page.read(vllm(tokens=(1000, 4000)[n % 2] + n, steps=(100, 700)[n % 2] + n), float(n)) for n in range(1, 9)
    ]
    assert [e.what for r in reports for e in r.events].count("restart") <= 1
    assert "ambiguous" in [e.what for r in reports for e in r.events]
    assert math.isnan(flat(reports[-1])[0]["generated_tokens_total"])
    assert flat(reports[-1])[0]["req_running"] == 4, "gauges are still told"


def test_a_counter_that_begins_again_is_a_restart_and_no_negative_rate():
    """T30: engine_restart and counter_reset."""
    pages = [vllm(tokens=1000 + 10 * n, steps=100 + n) for n in range(30)] + [
        vllm(tokens=10 * n, steps=n) for n in range(30)
    ]
    pipeline, _ = watched(pages)
    assert window(pipeline).rate("generated_tokens_total", 60) == pytest.approx(10, abs=1)
    assert (np.nan_to_num(window(pipeline).increments("generated_tokens_total", 60)) >= 0).all()


def test_a_counter_created_anew_is_a_restart_by_its_stamp():
    """T30: counter_recreated. Values grew, but the stamp of creation is another."""
    page = EnginePage("e")
    page.read(vllm(tokens=10, generation_tokens_created=1.7e9), 1.0)
    report = page.read(vllm(tokens=2000, generation_tokens_created=1.7e9 + 90), 2.0)
    assert [e.what for e in report.events] == ["restart"]


def test_a_labelled_counter_that_has_not_counted_is_zero_only_where_the_release_has_it():
    """T17: the series appears with the first event."""
    new = page_of("sglang:num_running_reqs 3", 'sglang:realtime_tokens_total{mode="decode"} 9')
    assert read(new)[0]["req_preempted_total"] == 0
    assert "req_preempted_total" not in read(page_of("sglang:num_running_reqs 3"))[0], "an old release says nothing"


def test_the_gauge_of_retractions_that_each_report_resets_is_not_read():
    """T17: `num_retracted_reqs`; T16: `cache_hit_rate`; T19: `gen_throughput`, `utilization`."""
    names = all_dialects()["sglang"].sample_names("sglang:")
    refused = {"num_retracted_reqs", "cache_hit_rate", "gen_throughput", "utilization"}
    assert not names & {f"sglang:{name}" for name in refused}
    assert "prefix_hit_ratio" in all_dialects()["sglang"].absent


def test_the_same_requests_are_counted_once():
    """T20: totals beside their priorities, copies of every tensor, pipeline and expert rank."""
    parts = {"": 20, "0": 12, "5": 8}
    lines = [
        f'sglang:num_running_reqs{{tp_rank="{tp}",pp_rank="{pp}",moe_ep_rank="{tp}",priority="{p}"}} {n}'
        for tp in "01" for pp in "01" for p, n in parts.items()
    ]  # fmt: skip
    assert read(page_of(*lines))[0]["req_running"] == 20
    without_total = [line for line in lines if 'priority=""' not in line]
    assert read(page_of(*without_total))[0]["req_running"] == 20, "no total: the parts are added up"


def test_gauges_of_every_process_are_one_gauge():
    """T13: before a fix, usage had one series a process id."""
    lines = [f'vllm:kv_cache_usage_perc{{engine="0",pid="{pid}"}} {v}' for pid, v in ((7, 0.2), (9, 0.8))]
    lines += [f'vllm:num_requests_running{{engine="0",pid="{pid}"}} {v}' for pid, v in ((7, 0), (9, 12))]
    assert (read(page_of(*lines))[0]["kv_usage_ratio"], read(page_of(*lines))[0]["req_running"]) == (0.8, 12)


# Histograms


def queue_page(counts, total, bounds=(0.3, 0.5, 0.8)):
    lines = [f'vllm:request_queue_time_seconds_bucket{{engine="0",le="{b}"}} {c}' for b, c in zip((*bounds, "+Inf"), counts, strict=True)]  # noqa: E501  # fmt: skip
    lines += [f'vllm:request_queue_time_seconds_sum{{engine="0"}} {total}']
    lines += [f'vllm:request_queue_time_seconds_count{{engine="0"}} {counts[-1]}']
    return vllm() + page_of(*lines)


def test_a_quantile_below_the_first_bound_is_refused_and_the_mean_is_not():
    """T4: families that begin at 0.3 s."""
    pipeline, _ = watched([queue_page((10 * n,) * 4, 0.2 * n) for n in range(30)])
    w = window(pipeline)
    with pytest.raises(Missing, match="outside what its buckets resolve"):
        w.observed_quantile("queue_seconds", 0.95, 20)
    assert w.observed_mean("queue_seconds", 20) == pytest.approx(0.02)


def test_sums_without_buckets_answer_for_the_mean_only():
    """llama.cpp has seconds and tokens, and no histogram."""
    pages = [
        page_of("llamacpp:requests_processing 1", f"llamacpp:tokens_predicted_total {100 * n}",
                f"llamacpp:tokens_predicted_seconds_total {5 * n}", f"llamacpp:n_decode_total {100 * n}")
        for n in range(30)
    ]  # fmt: skip
    pipeline, _ = watched(pages)
    assert window(pipeline).observed_mean("itl_seconds", 20) == pytest.approx(0.05)
    with pytest.raises(Missing):
        window(pipeline).observed_quantile("itl_seconds", 0.5, 20)


def test_bounds_that_change_within_the_window_begin_anew():
    """T30: bucket_boundaries_changed; an upgrade under the same address."""
    old = [queue_page((n, n, n, n), 0.1 * n) for n in range(1, 30)]
    new = [queue_page((n, n, n), 0.4 * n, bounds=(0.5, 1.0)) for n in range(1, 20)]
    pipeline, _ = watched([*old, *new])
    assert window(pipeline).observed_mean("queue_seconds", 60) == pytest.approx(0.4), "nothing is subtracted across"


def test_a_label_that_appears_splits_no_histogram():
    """T30: `is_streaming` came with a release and doubles the series: they are added up by bound."""

    def page(label, n):
        head = "sglang:time_to_first_token_seconds"
        return [f'{head}_bucket{{{label}le="0.1"}} {n}', f'{head}_bucket{{{label}le="+Inf"}} {n}',
                f"{head}_sum{{{label}}} {n * 0.05}", f"{head}_count{{{label}}} {n}"]  # fmt: skip

    lines = ["sglang:num_running_reqs 1", *page('is_streaming="true",', 10), *page('is_streaming="false",', 4)]
    report = EnginePage("e").read(page_of(*lines), 1.0)
    assert [(h.name, h.count, h.bounds) for h in report.histograms] == [("ttft_seconds", 14, (0.1,))]
    assert report.dropped == 0


def test_negative_durations_are_left_out_and_counted():
    """T5, T21: a sum that falls while the count grows; a mean over it is refused."""
    page = EnginePage("e")
    before = page.read(queue_page((5, 5, 5, 5), 2.0), 1.0)
    after = page.read(queue_page((6, 6, 6, 6), -300.0), 2.0)
    assert [h.name for h in before.histograms] == ["queue_seconds"]
    assert (after.histograms, after.dropped) == ((), 1)
    falling = [queue_page((n, n, n, n), -5.0 * n) for n in range(1, 20)]
    pipeline, _ = watched(falling)
    with pytest.raises(Missing):
        window(pipeline).observed_mean("queue_seconds", 15)


def test_a_gap_that_brought_several_tokens_is_divided_by_them():
    """T7: with speculation one observation is an engine output of several tokens."""

    def page(n, drafts):
        head = "vllm:inter_token_latency_seconds"
        lines = [f'{head}_bucket{{engine="0",le="{b}"}} {10 * n}' for b in (0.1, "+Inf")]
        lines += [f'{head}_sum{{engine="0"}} {0.6 * n}', f'{head}_count{{engine="0"}} {10 * n}']
        return vllm(tokens=30 * n, steps=n, spec_decode_num_drafts_total=drafts) + page_of(*lines)

    from gpuwatch.questions.latency import itl_mean_s

    speculating, _ = watched([page(n, 10 * n) for n in range(70)])
    plain, _ = watched([page(n, 0) for n in range(70)])
    assert window(speculating).once(itl_mean_s) == pytest.approx(0.02, rel=0.1)
    assert window(plain).once(itl_mean_s) == pytest.approx(0.06, rel=0.1)


def test_time_per_token_that_includes_the_prefill_is_not_read():
    """T26."""
    dialect = all_dialects()["tgi"]
    assert not any("mean_time_per_token" in name for name in dialect.sample_names("tgi_"))
    assert "prefill" in dialect.absent["tpot_seconds"]


def test_what_is_observed_per_output_is_no_step():
    """T6, T28: vLLM books a prompt in the step of its first token, LMDeploy observes outputs of requests."""
    assert {"step_prefill_tokens", "step_decode_tokens"} <= set(all_dialects()["vllm"].absent)
    assert {"steps_total", "iteration_tokens"} <= set(all_dialects()["lmdeploy"].absent)


# KV, pools, adapters


def test_blocks_summed_over_ranks_are_divided_and_the_engines_own_size_is_believed():
    """T8."""
    lines = []
    for engine in "0123":
        lines += [f'vllm:num_requests_running{{engine="{engine}"}} 1',
                  f'vllm:cache_config_info{{engine="{engine}",num_gpu_blocks="4000",block_size="16"}} 1']  # fmt: skip
    found = read(page_of(*lines))
    assert {(s["kv_total_blocks"], s["kv_capacity_tokens"]) for s in found.values()} == {(1000, 16000)}


def test_the_fullest_pool_is_the_pressure():
    """Hybrid models: one pool can be full while another is idle."""
    lines = (
        "sglang:num_running_reqs 1",
        "sglang:token_usage 0.41",
        "sglang:swa_token_usage 0.97",
        "sglang:mamba_usage 0.1",
    )
    assert read(page_of(*lines))[0]["kv_usage_ratio"] == 0.97


def test_a_fraction_cast_to_an_integer_is_computed():
    """T25."""
    assert read(captured("triton-23.10-synthetic"))[0]["kv_usage_ratio"] == 0.75


def test_a_percentage_where_a_fraction_belongs_is_dropped_and_counted():
    """T29."""
    page = EnginePage("e")
    report = page.read(
        page_of("dynamo_component_inflight_requests 1", "dynamo_component_gpu_cache_usage_percent 41.5"), 1.0
    )
    assert math.isnan(flat(report)[0]["kv_usage_ratio"])
    assert report.dropped == 1


def test_pages_and_their_number_are_read_where_they_moved_to():
    """T31: SGLang's cache_config_info is gone since 0.5.11; gauges say it now."""
    new = page_of("sglang:num_running_reqs 1", "sglang:page_size 16", "sglang:num_pages 1000")
    old = page_of("sglang:num_running_reqs 1", 'sglang:cache_config_info{page_size="16",num_pages="1000"} 1')
    assert read(new)[0]["kv_capacity_tokens"] == 16000
    assert facts_of(EnginePage("e").read(old, 1.0))[0]["kv_capacity_tokens"] == "16000"


def test_of_adapter_lists_the_newest_counts_and_who_runs_does_not_wait():
    """T33: every combination that ever was stays on the page; running adapters are listed as waiting, too."""
    found = read(captured("vllm-0.32.0-dp2-lora-spec-synthetic"))[0]
    assert (found["lora_running_adapters"], found["lora_waiting_adapters"]) == (2, 1)


def test_a_new_combination_of_adapters_is_read_from_the_next_page():
    page = EnginePage("e")
    older = 'vllm:lora_requests_info{max_lora="4",running_lora_adapters="a",waiting_lora_adapters=""} 100'
    newer = 'vllm:lora_requests_info{max_lora="4",running_lora_adapters="a,b",waiting_lora_adapters=""} 200'
    assert flat(page.read(vllm() + page_of(older), 1.0))[0]["lora_running_adapters"] == 1
    assert flat(page.read(vllm() + page_of(older, newer), 2.0))[0]["lora_running_adapters"] == 2


def test_usage_counts_evictable_prefixes_as_free_in_every_engine():
    """T11: none of the names that count them as used is taken for kv_usage_ratio."""
    names = {
        n
        for d in all_dialects().values()
        for c in d.signals["kv_usage_ratio"].choices
        for t in c.terms
        for n in t.names
    }
    assert not names & {"num_used_tokens", "kv_evictable_tokens", "cpu_cache_usage_perc"}


# Requests that nothing counts


def test_a_request_whose_client_went_away_is_booked_as_a_fall_of_the_sum():
    """T2, T22: nothing counts it, but it leaves running; arrivals never fall."""
    page = EnginePage("e")
    running = [5, 6, 6, 3, 3, 3, 3, 4]
    arrived = [flat(page.read(vllm(running=n, request_success_total=10), float(t)))[0]["req_arrived_total"] for t, n in enumerate(running)]  # noqa: E501  # fmt: skip
    assert arrived == [15, 16, 16, 16, 16, 16, 16, 17]


def test_requests_held_back_are_told_from_those_without_room():
    """T12, T14: what pins at the limit, or never fits, shows by its cause."""
    found = read(captured("vllm-0.32.0-synthetic"))[0]
    assert (found["req_waiting_capacity"], found["req_waiting_deferred"]) == (2, 1)
    found = read(captured("sglang-0.5.18-synthetic"))[0]
    assert (found["req_waiting_capacity"], found["req_waiting_deferred"]) == (5, 2)
