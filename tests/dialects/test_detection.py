"""Who speaks on a page: by names only, under any prefix, with others beside."""

import pytest

from gpuwatch.dialects import all_dialects, detect, recognise
from gpuwatch.sources.page.engine_page import EnginePage, UnknownPageError
from tests.dialects.reading_pages import captured, facts_of, flat, page_of, read

ENGINES = {"vllm", "sglang", "trtllm", "triton", "tgi", "llamacpp", "lmdeploy", "dynamo", "shim"}


def test_every_engine_has_its_file():
    assert set(all_dialects()) == ENGINES


@pytest.mark.parametrize(
    ("name", "of", "to"),
    [
        ("sglang-0.5.18-synthetic", b"sglang:", b"sglang_"),
        ("trtllm-1.3.0-synthetic", b"trtllm_", b"trtllm:"),
        ("lmdeploy-0.10.0-synthetic", b"lmdeploy:", b"lmdeploy_"),
        ("llamacpp-b4400-synthetic", b"llamacpp:", b"llamacpp_"),
        ("dynamo-1.0.0-synthetic", b"dynamo_frontend_", b"acme_llm_"),
        ("dynamo-1.0.0-synthetic", b"dynamo_frontend_", b"nv_llm_http_service_"),
    ],
)
def test_another_prefix_is_the_same_engine(name, of, to):
    """Sanitised names, an older wrapper's, and a prefix that an operator chose."""
    assert repr(read(captured(name).replace(of, to))) == repr(read(captured(name)))


def test_a_workers_page_that_repeats_an_engines_names_is_that_engine():
    """Dynamo puts its own metrics beside those of the engine inside."""
    own = page_of(
        'dynamo_component_requests_total{dynamo_component="backend",model="m"} 10',
        'dynamo_component_inflight_requests{dynamo_component="backend",model="m"} 3',
        'dynamo_component_gpu_cache_usage_percent{dynamo_component="backend"} 0.4',
    )
    for name, engine in (
        ("vllm-0.32.0-synthetic", "vllm"),
        ("sglang-0.5.18-synthetic", "sglang"),
        ("trtllm-1.3.0-synthetic", "trtllm"),
    ):
        page = EnginePage("e")
        report = page.read(own + captured(name), 1.0)
        assert page.dialect.name == engine
        assert flat(report) == read(captured(name))
        assert facts_of(report)[0]["also_on_page"] == "dynamo"
    alone = read(own)[0]
    assert (alone["req_running"], alone["kv_usage_ratio"], alone["req_finished_total"]) == (3, 0.4, 10)


def test_of_two_engines_on_one_page_the_one_with_more_to_say_is_read_and_the_other_can_be_asked_for():
    body = captured("vllm-0.32.0-synthetic") + captured("llamacpp-b4400-synthetic")
    page = EnginePage("e")
    assert facts_of(page.read(body, 1.0))[0]["also_on_page"] == "llamacpp"
    assert page.dialect.name == "vllm"
    assert read(body, "llamacpp")[0]["steps_total"] == 5210


def test_a_part_of_a_page_is_enough():
    """What somebody pasted into an issue: two counters, no gauge."""
    lines = page_of(
        'vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1131',
        'vllm:prefix_cache_hits_total{engine="0",model_name="m"} 0',
    )
    assert read(lines)[0]["prefix_query_tokens_total"] == 1131


def test_unprefixed_names_need_more_than_one_that_anybody_could_have():
    assert detect({"request_success_total", "num_requests_running"}) is None
    assert recognise({"e2e_request_latency_seconds_count"})[0][0].name == "trtllm"


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (b"[]", "emptied by reading"),
        (b"inference_pool_average_queue_size 3\n", "router's"),
        (b'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 95\n', "dcgm-exporter"),
        (b'python_info{version="3.12"} 1\nprocess_start_time_seconds 3\n', "switched off"),
    ],
    ids=["json", "router", "dcgm", "process-only"],
)
def test_a_page_of_somebody_else_is_refused_with_what_it_is(body, hint):
    with pytest.raises(UnknownPageError, match=hint):
        EnginePage("e").read(body, 1.0)


def test_another_engine_behind_the_same_address_is_noticed():
    page = EnginePage("e")
    page.read(captured("vllm-0.32.0-synthetic"), 1.0)
    assert flat(page.read(captured("tgi-3.3.7-synthetic"), 2.0))[0]["req_waiting"] == 12
    assert page.dialect.name == "tgi"


def test_counters_without_their_ending_are_read():
    """Some exporters leave `_total` away."""
    body = captured("vllm-0.33.0-ray-synthetic").replace(b"tokens_total", b"tokens")
    assert read(body)[1]["generated_tokens_total"] == 20000
