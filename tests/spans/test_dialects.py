"""Each engine's spans, composed in its shape, give the stage seconds that the engine meant."""

from pathlib import Path

import numpy as np
import pytest

from gpuwatch.model import STAGES
from gpuwatch.sources.spans.decoder import SpanDecoder
from gpuwatch.sources.spans.dialects import span_dialects
from gpuwatch.sources.spans.dialects.dialect import FACTS, SpanDialect
from gpuwatch.sources.spans.stages import duration_s
from gpuwatch.wire.otlp import OtlpLimits
from tests.spans.exports import (
    CLIENT,
    PROTO,
    SERVER,
    SUBJECT,
    Trace,
    as_json,
    decoder,
    outcomes,
    requests,
    seconds,
    stages,
    taken,
)

VLLM_V1 = {
    "gen_ai.latency.time_to_first_token": 0.5, "gen_ai.latency.e2e": 2.0, "gen_ai.latency.time_in_queue": 0.3,
    "gen_ai.latency.time_in_model_prefill": 0.15, "gen_ai.latency.time_in_model_decode": 1.4,
    "gen_ai.latency.time_in_model_inference": 1.55, "gen_ai.usage.prompt_tokens": 512,
    "gen_ai.usage.completion_tokens": 70, "gen_ai.request.id": "cmpl-1", "gen_ai.request.max_tokens": 128,
    "gen_ai.request.n": 1, "gen_ai.request.temperature": 1.0, "gen_ai.request.top_p": 1.0,
}  # fmt: skip
VLLM_V0 = {
    "gen_ai.response.model": "m", "gen_ai.request.id": "cmpl-1", "gen_ai.usage.num_sequences": 1,
    "gen_ai.usage.prompt_tokens": 512, "gen_ai.usage.completion_tokens": 70, "gen_ai.latency.time_in_queue": 0.3,
    "gen_ai.latency.time_to_first_token": 0.5, "gen_ai.latency.e2e": 2.0, "gen_ai.latency.time_in_scheduler": 0.01,
}  # fmt: skip


def vllm(said, scope="vllm.tracing.otel"):
    trace = Trace(scope, {"vllm.process_id": 7})
    trace.span("llm_request", 0, 2.0, said, kind=SERVER)
    trace.span("Load model", 0, 1.0)
    return trace


def test_vllm_v1_prefill_excludes_the_wait():
    assert stages(taken(vllm(VLLM_V1).body)) == [
        ("request", 0, 2.0), ("preprocess", 0, 0.05), ("queue", 0.05, 0.35), ("prefill", 0.35, 0.5),
        ("decode", 0.5, 1.9), ("postprocess", 1.9, 2.0),
    ]  # fmt: skip


def test_vllm_v0_prefill_is_the_rest_of_the_time_to_first_token():
    found = taken(vllm(VLLM_V0, "vllm.llm_engine").body)
    assert stages(found) == [("request", 0, 2.0), ("queue", 0, 0.3), ("prefill", 0.3, 0.5), ("decode", 0.5, 2.0)]
    assert set(found[0].prompt_tokens) == {512}


def test_vllm_child_spans_are_used_instead_of_attributes_and_a_preemption_shows():
    """They come from another process, before their root."""
    trace = vllm(VLLM_V1)
    root = trace.scope.spans[0].span_id
    trace.span("vllm_queue", 0.05, 0.35, parent=root)
    trace.span("vllm_prefill", 0.35, 0.5, parent=root)
    trace.span("vllm_decode", 0.5, 0.9, parent=root)
    trace.span("vllm_queue", 0.9, 1.2, parent=root)
    trace.span("vllm_prefill", 1.2, 1.4, parent=root)
    trace.span("vllm_decode", 1.4, 1.9, parent=root)
    children = trace.take_out(lambda span: span.name.startswith("vllm_"))
    found = taken(children.body, trace.body)
    assert stages(found) == [
        ("request", 0, 2.0), ("queue", 0.05, 0.35), ("prefill", 0.35, 0.5), ("decode", 0.5, 1.2),
        ("prefill", 1.2, 1.4), ("decode", 1.4, 1.9),
    ]  # fmt: skip
    assert len(requests(found)) == 1


SGLANG_ROOT = {
    "rid": "ab12cd34ef", "module": "sglang::request", "gen_ai.request.id": "ab12cd34ef",
    "gen_ai.usage.prompt_tokens": 40, "gen_ai.usage.completion_tokens": 9, "gen_ai.usage.cached_tokens": 16,
    "gen_ai.response.finish_reasons": ["length"], "gen_ai.latency.time_to_first_token": 1.0,
    "gen_ai.latency.e2e": 3.0, "gen_ai.latency.time_in_model_decode": 2.0,
    "gen_ai.latency.time_in_model_prefill": 0.9, "gen_ai.latency.time_in_model_inference": 2.9,
}  # fmt: skip


def sglang(trace, *slices, role="", rank=0, said=None, end=3.0, events=()):
    """Root and its front end's thread in one process, the scheduler's thread and slices in another."""
    root = trace.span(f"{role} Req ab12cd34", 0, end, SGLANG_ROOT if said is None else said)
    front = trace.span("Tokenizer (host:0123abcd | pid:11)", 0, 0.1, {"thread_label": "Tokenizer", "pid": 11}, root)
    trace.span("tokenize", 0, 0.06, parent=front)
    trace.span("api_server_dispatch", 0.06, 0.1, parent=front)
    trace.open("sglang server", {"service.name": "sglang"})
    label = {"thread_label": "Scheduler", "pid": 12, "tp_rank": 0, "dp_rank": rank, "host_id": "0123abcd"}
    thread = trace.span(f"Scheduler [TP 0] [DP {rank}] (host:0123abcd | pid:12)", 0.12, end, label, root, events=events)
    parents = [thread]
    for depth, name, start, until in slices:
        del parents[depth + 1 :]
        parents.append(trace.span(name, start, until, parent=parents[depth]))
    return trace


PLAIN = (
    (0, "request_process", 0.12, 0.15), (0, "prefill_waiting", 0.15, 0.7), (0, "prefill_forward", 0.7, 1.0),
    (1, "chunked_prefill", 0.7, 0.85), (1, "chunked_prefill", 0.85, 1.0), (0, "decode_waiting", 1.0, 1.05),
    (0, "decode_forward", 1.05, 3.0), (1, "decode_loop", 1.05, 1.4), (1, "decode_loop", 1.4, 3.0),
)  # fmt: skip


def new_sglang():
    return Trace("sglang server", {"service.name": "sglang"})


def test_sglang_waits_where_its_slice_says_and_prefill_does_not_hold_the_wait():
    """`time_in_model_prefill` (0.9 s) holds the wait; the tree has prefill_waiting 0.55 s and prefill 0.3 s."""
    found = taken(sglang(new_sglang(), *PLAIN).body)
    assert stages(found) == [
        ("request", 0, 3.0), ("preprocess", 0, 0.15), ("queue", 0.15, 0.7), ("prefill", 0.7, 1.0), ("decode", 1.0, 3.0),
    ]  # fmt: skip
    assert outcomes(found) == ["length"]
    assert {s.subject.engine for s in found} == {"sglang"}
    assert set(found[0].cached_tokens) == {16}


def test_sglang_decode_before_and_after_a_retraction():
    """Decoding stays one slice through it: the event and the second prefill inside tell the second wait."""
    slices = (
        *PLAIN[:6],
        (0, "decode_forward", 1.05, 3.0),
        (1, "prefill_forward", 2.0, 2.2),
        (1, "decode_waiting", 2.2, 2.3),
    )
    trace = sglang(new_sglang(), *slices, events=[("retract", 1.5), ("schedule", 2.0)])
    assert stages(taken(trace.body)) == [
        ("request", 0, 3.0), ("preprocess", 0, 0.15), ("queue", 0.15, 0.7), ("prefill", 0.7, 1.0), ("decode", 1.0, 1.5),
        ("requeue", 1.5, 2.0), ("prefill", 2.0, 2.2), ("decode", 2.2, 3.0),
    ]  # fmt: skip


def test_sglang_spans_of_several_exports_in_any_order_are_one_request():
    whole = stages(taken(sglang(new_sglang(), *PLAIN).body))
    for late_names in (("prefill_waiting", "decode_forward"), ("prefill_forward",), (" Req ab12cd34",)):
        trace = sglang(new_sglang(), *PLAIN)
        late = trace.take_out(lambda span, late_names=late_names: span.name in late_names)
        for bodies in ((trace.body, late.body), (late.body, trace.body)):
            found = taken(*bodies, every_s=1.0)
            assert stages(found) == whole, late_names
            assert len(requests(found)) == 1


def test_sglang_ranks_are_subjects():
    found = taken(sglang(new_sglang(), *PLAIN, rank=3).body)
    assert {spans.subject.rank for spans in found} == {3}


def test_sglang_slices_that_every_tensor_rank_repeats_count_once():
    trace = sglang(new_sglang(), *PLAIN)
    root = trace.message.resource_spans[0].scope_spans[0].spans[0].span_id
    thread = trace.span(
        "Scheduler [TP 1] (host:0123abcd | pid:13)", 0.12, 3.0, {"tp_rank": 1, "thread_label": "S"}, root
    )
    for name, start, end in (
        ("prefill_waiting", 0.15, 0.7),
        ("prefill_forward", 0.7, 1.0),
        ("decode_forward", 1.05, 3.0),
    ):
        trace.span(name, start, end, parent=thread)
    assert seconds(taken(trace.body)) == {
        "request": 3.0,
        "preprocess": 0.15,
        "queue": 0.55,
        "prefill": 0.3,
        "decode": 2.0,
    }


def test_sglang_root_alone_tells_decoding_and_no_wait():
    """Level 0 of its tracing, or a scheduler whose export was lost: queue and prefill are one number, so neither is told."""
    trace = new_sglang()
    trace.span(" Req ab12cd34", 0, 3.0, SGLANG_ROOT)
    assert seconds(taken(trace.body)) == {"request": 3.0, "preprocess": 0.1, "decode": 2.0}


def test_sglang_decode_worker_waits_for_its_batch():
    trace = sglang(
        new_sglang(), (0, "decode_prepare", 0.12, 0.15), (0, "decode_bootstrap", 0.15, 0.2),
        (0, "decode_transferred", 0.2, 0.5), (0, "decode_waiting", 0.5, 0.8), (0, "decode_forward", 0.8, 3.0),
        role="decode",
    )  # fmt: skip
    assert seconds(taken(trace.body)) == {
        "request": 3.0, "preprocess": 0.15, "queue": 0.35, "transfer": 0.3, "decode": 2.2,
    }  # fmt: skip


def test_tensorrt_llm_prefill_is_what_remains():
    trace = Trace("trt.llm")
    said = {
        "gen_ai.latency.time_to_first_token": 0.5, "gen_ai.latency.e2e": 2.0, "gen_ai.latency.time_in_queue": 0.2,
        "gen_ai.usage.prompt_tokens": 100, "gen_ai.usage.completion_tokens": 5, "gen_ai.response.finish_reasons": ["stop"],
    }  # fmt: skip
    trace.span("llm_request", 0, 2.0, said, kind=SERVER)
    found = taken(trace.body)
    assert stages(found) == [("request", 0, 2.0), ("queue", 0, 0.2), ("prefill", 0.2, 0.5), ("decode", 0.5, 2.0)]
    assert outcomes(found) == ["stop"]


def test_tensorrt_llm_transfer_lies_before_the_first_token():
    trace = Trace("trt.llm")
    said = {
        "gen_ai.latency.time_to_first_token": 0.5, "gen_ai.latency.e2e": 2.0, "gen_ai.latency.time_in_queue": 0.1,
        "gen_ai.latency.kv_cache_transfer_time": 0.15,
    }  # fmt: skip
    trace.span("llm_request", 0, 2.0, said, kind=SERVER)
    assert stages(taken(trace.body)) == [
        ("request", 0, 2.0), ("queue", 0, 0.1), ("prefill", 0.1, 0.35), ("transfer", 0.35, 0.5), ("decode", 0.5, 2.0),
    ]  # fmt: skip


TGI = {
    "total_time": "2.001s", "validation_time": "12ms", "queue_time": "300.1ms", "inference_time": "1.688s",
    "time_per_token": "24.1ms", "seed": "None", "generated_tokens": 70,
}  # fmt: skip


def tgi(*children):
    trace = Trace("opentelemetry-otlp", {"service.name": "text-generation-inference.router"})
    root = trace.span("generate", 0, 2.001, TGI, kind=INTERNAL_OF_TGI)
    inner = trace.span("generate", 0.001, 2.0, parent=root)
    stream = trace.span("generate_stream", 0.001, 2.0, parent=inner)
    for name, start, end in children:
        trace.span(name, start, end, parent=stream)
    trace.span("batch", 0.3, 0.5, {"batch_size": 3})
    return trace


INTERNAL_OF_TGI = 1


def test_tgi_durations_are_as_rust_prints_them_and_inference_is_not_split_without_children():
    found = taken(tgi().body)
    assert stages(found) == [("request", 0, 2.001), ("preprocess", 0, 0.012), ("queue", 0.012, 0.312)]
    assert set(found[0].output_tokens) == {70}
    assert len(requests(found)) == 1, "spans of the same names below it are not requests"


def test_tgi_first_infer_is_the_prefill():
    found = taken(
        tgi(
            ("queued", 0.013, 0.313),
            ("infer", 0.313, 0.5),
            ("infer", 0.5, 0.6),
            ("waiting", 0.6, 0.8),
            ("infer", 0.8, 2.0),
        ).body
    )
    assert stages(found) == [
        ("request", 0, 2.001), ("queue", 0.013, 0.313), ("prefill", 0.313, 0.5), ("decode", 0.5, 2.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "seconds_"),
    [
        ("1.5s", 1.5), ("12.345678ms", 0.012345678), ("150µs", 150e-6), ("150us", 150e-6), ("7ns", 7e-9), ("0ns", 0.0),
        ('"2s"', 2.0),
    ],
)  # fmt: skip
def test_rust_durations(text, seconds_):
    assert duration_s(text.encode()) == pytest.approx(seconds_)


@pytest.mark.parametrize("text", ["", "s", "-1s", "1.5", "NaN", "1e3s", "1 s", "1h", "9" * 400 + "s"])
def test_what_is_no_duration_is_not_known(text):
    assert np.isnan(duration_s(text.encode()))


def test_dynamo_front_end_in_milliseconds():
    trace = Trace("dynamo_llm", {"service.name": "dynamo.frontend"})
    trace.span("http-request", 0, 2.0, {"ttft_ms": 400.0, "avg_itl_ms": 20.0, "input_tokens": 30, "output_tokens": 80})
    found = taken(trace.body)
    assert set(found[0].prompt_tokens) == {30}
    assert stages(found) == [("request", 0, 2.0), ("decode", 0.4, 2.0)]


@pytest.mark.parametrize(
    "said",
    [
        {"gen_ai.usage.input_tokens": 11, "gen_ai.usage.output_tokens": 3},
        {"gen_ai.usage.prompt_tokens": 11, "gen_ai.usage.completion_tokens": 3},
        {"gen_ai.usage.prompt_tokens": 99, "gen_ai.usage.input_tokens": 11, "gen_ai.usage.output_tokens": 3},
    ],
    ids=["new", "old", "both"],
)
def test_genai_conventions_old_and_new(said):
    trace = Trace("opentelemetry.instrumentation.openai_v2")
    said = {"gen_ai.operation.name": "chat", "gen_ai.response.finish_reasons": ["stop"]} | said
    trace.span("chat tiny-model", 0, 1.5, said | {"gen_ai.response.time_to_first_chunk": 0.25}, kind=CLIENT)
    found = taken(trace.body)
    assert (set(found[0].prompt_tokens), set(found[0].output_tokens)) == ({11}, {3})
    assert stages(found) == [("request", 0, 1.5), ("decode", 0.25, 1.5)]
    assert outcomes(found) == ["stop"]


def test_an_engine_is_known_by_what_only_it_has_whatever_its_scope_is_called():
    """A collector on the way may have renamed scopes: resource, attributes or names still tell."""
    renamed = vllm(VLLM_V1, scope="")
    assert seconds(taken(renamed.body))["prefill"] == 0.15
    trace = sglang(Trace("x", {"service.name": "x"}), *PLAIN)
    for batch in trace.message.resource_spans:
        batch.scope_spans[0].scope.name = "x"
        batch.resource.attributes[0].value.string_value = "x"
    assert seconds(taken(trace.body))["queue"] == 0.55


def test_spans_of_an_unknown_engine_are_counted_and_only_its_requests_are_kept():
    trace = Trace("acme.engine")
    trace.span("POST /generate", 0, 2.0, {"acme.secret_stage": 1.0}, kind=SERVER, error=True)
    trace.span("step", 0.5, 1.0)
    trace.span("POST /generate", 2.0, 1.0, kind=SERVER)
    decoded = decoder().decode(trace.body, PROTO)
    assert decoded.reasons == {"unknown_engine": 2, "bad_times": 1}
    assert stages(decoded.spans) == [("request", 0, 2.0)]
    assert outcomes(decoded.spans) == ["error"]


@pytest.mark.parametrize("scope", ["opentelemetry.instrumentation.fastapi", "@opentelemetry/instrumentation-http"])
def test_http_libraries_in_front_of_an_engine_are_no_second_engine(scope):
    trace = Trace(scope)
    trace.span("POST /v1/completions", 0, 2.0, kind=SERVER)
    assert decoder().decode(trace.body, PROTO).spans == ()


def test_unknown_spans_of_a_service_that_nobody_watches_are_no_requests():
    trace = Trace("acme.shop", {"service.name": "shop"})
    trace.span("GET /cart", 0, 2.0, kind=SERVER)
    reader = SpanDecoder(lambda _: SUBJECT, b"", is_named=lambda resource: resource["service.name"] == "e")
    decoded = reader.decode(trace.body, PROTO)
    assert (decoded.spans, decoded.reasons) == ((), {"unknown_engine": 1})


@pytest.mark.parametrize(
    "trace",
    [vllm(VLLM_V1), vllm(VLLM_V0), sglang(new_sglang(), *PLAIN), tgi(("queued", 0, 0.3), ("infer", 0.3, 0.5))],
    ids=["vllm", "vllm-v0", "sglang", "tgi"],
)
def test_json_says_what_protobuf_says(trace):
    one, other = taken(trace.body), taken(as_json(trace.message), kind="application/json; charset=utf-8")
    assert stages(one) == stages(other)
    assert requests(one) == requests(other)
    assert outcomes(one) == outcomes(other)


@pytest.mark.parametrize("dialect", span_dialects(), ids=lambda dialect: dialect.name)
def test_dialects_speak_of_known_facts_and_stages(dialect: SpanDialect):
    assert set(dialect.facts) <= set(FACTS)
    assert {*dialect.stages.values(), *dialect.first_stages.values()} <= set(STAGES) - {"request"}
    assert not dialect.number_attributes() & dialect.text_attributes()


def test_learned_layouts_read_what_a_single_span_reads():
    """Five hundred spans of one engine with values of every width, at once and one by one."""
    rng = np.random.default_rng(5)
    trace = Trace("vllm.tracing.otel")
    for i in range(500):
        said = VLLM_V1 | {
            "gen_ai.usage.prompt_tokens": int(2 ** rng.uniform(0, 40)),
            "gen_ai.usage.completion_tokens": int(rng.integers(-5, 300)),
            "gen_ai.latency.e2e": float(rng.uniform(0, 5)),
            "gen_ai.request.id": f"cmpl-{i}",
            "note": "x" * int(rng.integers(0, 3)),
        }
        trace.span("llm_request", i, i + 2.0, said, kind=SERVER)
    reader = decoder()
    together = [reader.decode(trace.body, PROTO) for _ in range(2)]
    alone = []
    for span in trace.scope.spans:
        single = Trace("vllm.tracing.otel")
        single.scope.spans.append(span)
        alone += decoder().decode(single.body, PROTO).spans
    for decoded in together:
        assert stages(decoded.spans) == stages(alone)
        assert requests(decoded.spans) == requests(alone)
        tokens = sorted(np.nan_to_num(decoded.spans[0].prompt_tokens).tolist())
        assert tokens == sorted(np.nan_to_num(np.concatenate([s.prompt_tokens for s in alone])).tolist())


def test_more_attributes_than_a_span_may_have_are_cut_and_counted():
    trace = Trace("vllm.tracing.otel")
    trace.span("llm_request", 0, 2.0, {f"a{i}": i for i in range(30)} | VLLM_V1)
    decoded = decoder(limits=OtlpLimits(attributes=30)).decode(trace.body, PROTO)
    assert decoded.reasons == {"attributes": len(VLLM_V1)}
    assert stages(decoded.spans) == [("request", 0, 2.0)]


@pytest.mark.parametrize("dialect", span_dialects(), ids=lambda dialect: dialect.name)
def test_dialects_are_documented(dialect: SpanDialect):
    """By name, with what its attributes are called."""
    text = (Path(__file__).parents[2] / "docs" / "spans.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith(f"| `{dialect.name}`")]
    assert rows, dialect.name
    for stage_span in dialect.stages.keys() & {"prefill_waiting", "queued", "vllm_queue"}:
        assert any(stage_span in row for row in rows)
