"""What the plugin makes of vLLM's stats: each version's layout, what is not known stays unknown, and it never raises."""

import math

import pytest

from tests.vllm_plugin.stats_objects import FinishReason, Version, config, finished, iteration, prefix, scheduler

ALL = tuple(Version)


def last(file):
    """The newest step, by field; NaN as None."""
    columns = file.completed(0).columns
    return {name: None if math.isnan(values[-1]) else values[-1].item() for name, values in columns.items()}


def requests(file):
    columns = file.finished(0).columns
    rows = zip(*(values.tolist() for values in columns.values()), strict=True)
    return [{n: None if math.isnan(v) else v for n, v in zip(columns, row, strict=True)} for row in rows]


def test_the_ring_says_what_the_engine_is(plugin, ring):
    plugin.StepRingLogger(config(), 0)
    info = ring().info
    assert info["model"] == "tiny"
    assert (info["version"], info["port"], info["max_num_seqs"]) == ("0.32.0+cpu", 8123, 8)
    assert (info["kv_total_blocks"], info["block_tokens"], info["kv_capacity_tokens"]) == (100, 16, 1600)
    assert info["arg_enable_prefix_caching"] is True
    assert "arg_quantization" not in info, "what is not said is left out"


@pytest.mark.parametrize("version", ALL)
def test_a_step_of_every_version(plugin, ring, version):
    logger = plugin.StepRingLogger(config(), 0)
    looked_up = prefix(version, queries=100, hits=32, preempted_queries=50, preempted_hits=10)
    logger.record(
        scheduler(version, running=3, waiting=2, usage=0.5, prefix=looked_up),
        iteration(version, at=1000.0, generated=4, prompt=100, preempted=1, gaps=[0.02, 0.5, 0.02], first_tokens=[1.0]),
    )
    step = last(ring())
    assert (step["step"], step["ended_at"], step["begun_at"]) == (1, 1000.0, 1000.0 - 0.02)
    assert (step["decode_tokens"], step["generated_tokens_total"], step["prompt_tokens_total"]) == (3, 4, 100)
    assert (step["running"], step["waiting"]) == (3, 2)
    assert (step["kv_usage_ratio"], step["kv_used_blocks"], step["kv_total_blocks"]) == (0.5, 50, 100)
    assert (step["preempted_total"], step["prefix_query_tokens_total"], step["prefix_hit_tokens_total"]) == (1, 100, 32)
    assert step["recomputed_tokens_total"] == (None if version is Version.V0_8 else 40)
    assert step["cached_tokens_total"] == (0 if version is Version.V0_32 else None)
    assert step["waiting_deferred"] == (0 if version is Version.V0_32 else None)
    assert step["prefill_tokens"] is None, (
        "a chunked prompt is booked when it is complete: what a step computed is not told"
    )


@pytest.mark.parametrize("version", ALL)
def test_a_request_of_every_version(plugin, ring, version):
    logger = plugin.StepRingLogger(config(), 0)
    logger.record(scheduler(version), iteration(version, at=1000.0, finished=[finished(version)]))
    (request,) = requests(ring())
    named = version is Version.V0_32
    assert request.pop("id") > 0
    assert request == {
        "finished_at": 1000.0, "e2e_seconds": 2.0, "queue_seconds": 0.5, "prefill_seconds": 0.25, "decode_seconds": 1.0,
        "prompt_tokens": 100, "max_tokens": 20, "generated_tokens": 20, "reason": 2,
        "preemptions": 1 if named else None, "cached_tokens": 32 if named else None,
    }  # fmt: skip
    assert last(ring())["finished_total"] == 1


@pytest.mark.parametrize("gone", ["inter_token_latencies_iter", "num_generation_tokens", "finished_requests"])
def test_an_attribute_that_a_later_version_renames_is_not_known_and_the_rest_is(plugin, ring, told, gone):
    logger = plugin.StepRingLogger(config(), 0)
    stats = iteration(generated=4, gaps=[0.1], finished=[finished()])
    delattr(stats, gone)
    logger.record(scheduler(running=3), stats)
    step, field = last(ring()), {"inter_token_latencies_iter": "decode_tokens", "num_generation_tokens":
        "generated_tokens_total", "finished_requests": "finished_total"}[gone]  # fmt: skip
    assert step[field] is None
    assert step["running"] == 3
    assert told() == []


@pytest.mark.parametrize("gone", ["num_running_reqs", "num_waiting_reqs", "kv_cache_usage", "prefix_cache_stats"])
def test_the_same_of_the_scheduler(plugin, ring, told, gone):
    logger = plugin.StepRingLogger(config(), 0)
    stats = scheduler(prefix=prefix(queries=5))
    delattr(stats, gone)
    logger.record(stats, iteration(generated=4))
    field = {"num_running_reqs": "running", "num_waiting_reqs": "waiting", "kv_cache_usage": "kv_usage_ratio"}.get(gone)
    assert last(ring())["generated_tokens_total"] == 4
    assert field is None or last(ring())[field] is None
    assert told() == []


def test_deferred_requests_wait_too(plugin, ring):
    plugin.StepRingLogger(config(), 0).record(scheduler(waiting=5, deferred=2), None)
    step = last(ring())
    assert (step["waiting"], step["waiting_capacity"], step["waiting_deferred"]) == (5, 3, 2)


def test_when_a_step_began_is_said_only_where_it_is_known(plugin, ring):
    """From gaps between tokens; else from the step before, if that left work; never across an idle or sleeping engine."""
    logger = plugin.StepRingLogger(config(), 0)
    begun = []
    for at, running, gaps, nap in (
        (10.0, 1, (), False), (11.0, 1, (), False), (12.0, 0, (0.25,), False), (20.0, 1, (), False), (21.0, 1, (), True)
    ):  # fmt: skip
        if nap:
            logger.record_sleep_state(1, 0)
        logger.record(scheduler(running=running), iteration(at=at, gaps=gaps))
        begun.append(last(ring())["begun_at"])
    assert begun == [None, 10.0, 11.75, None, None]


def test_vllms_own_timing_of_a_step_is_used_where_it_is_switched_on(plugin, ring):
    from types import SimpleNamespace as Object

    logger = plugin.StepRingLogger(config(), 0)
    details = {"num_ctx_requests": 1, "num_ctx_tokens": 512, "elapsed_ms": 250.0, "is_dummy": False}
    logger.record(scheduler(iteration_details=Object(**details)), iteration(at=100.0, gaps=[3.0]))
    step = last(ring())
    assert (step["begun_at"], step["prefill_tokens"], step["longest_prefill_tokens"]) == (99.75, 512, 512)
    logger.record(scheduler(iteration_details=Object(**{**details, "num_ctx_requests": 2})), iteration(at=101.0))
    assert (last(ring())["prefill_tokens"], last(ring())["longest_prefill_tokens"]) == (512, None)
    logger.record(scheduler(iteration_details=Object(**{**details, "is_dummy": True})), None)
    assert last(ring())["step"] == 2, "a rank without work only keeps step with the others"


def test_prefixes_that_are_never_looked_up_are_no_misses(plugin, ring):
    cached = config().cache_config
    cached.enable_prefix_caching = False
    plugin.StepRingLogger(config(cache_config=cached), 0).record(scheduler(prefix=prefix()), None)
    step = last(ring())
    assert (step["prefix_query_tokens_total"], step["recomputed_tokens_total"]) == (None, None)


def test_drafts_are_told_where_there_is_speculation(plugin, ring):
    from types import SimpleNamespace as Object

    logger = plugin.StepRingLogger(config(speculative_config=Object(method="ngram", num_speculative_tokens=3)), 0)
    for accepted in (2, 1):
        drafts = Object(num_draft_tokens=3, num_accepted_tokens=accepted)
        logger.record(scheduler(spec_decoding_stats=drafts), None)
    step = last(ring())
    assert (step["draft_tokens"], step["drafted_tokens_total"], step["accepted_tokens_total"]) == (3, 3, 2)
    assert ring().info["arg_speculative_method"] == "ngram"


def test_stages_that_a_request_never_reached_are_not_known(plugin, ring):
    """An aborted request has no first token: vLLM subtracts a time that never came and gets a negative one."""
    logger = plugin.StepRingLogger(config(), 0)
    aborted = finished(reason=FinishReason.ABORT, prefill_time=-5e5, decode_time=0.0, max_tokens_param=None)
    logger.record(None, iteration(finished=[aborted, finished(reason=None, request_id=None)]))
    logger.record(scheduler(), None)
    first, second = requests(ring())
    assert (first["prefill_seconds"], first["max_tokens"], first["reason"]) == (None, None, 3)
    assert (second["reason"], second["id"] > 0) == (0, True)
    assert last(ring())["finished_total"] == 0, "neither was answered"


def test_nothing_of_a_request_but_numbers_is_written(plugin, ring, tmp_path):
    logger = plugin.StepRingLogger(config(), 0)
    logger.record(scheduler(), iteration(finished=[finished(request_id="chatcmpl-secret-4711")]))
    assert b"4711" not in (tmp_path / "vllm-0.ring").read_bytes()


def test_each_rank_has_a_file_and_its_share_of_the_blocks(plugin, ring):
    parallel = config().parallel_config
    parallel.data_parallel_size, parallel.data_parallel_size_local = 4, 2
    for local, blocks in ((False, 101 // 4 - 1), (True, 101 // 2 - 1)):
        parallel.local_engines_only = local
        first = plugin.StepRingLogger(config(parallel_config=parallel), 0)
        plugin.StepRingLogger(config(parallel_config=parallel), 1)
        assert ring("vllm-1.ring").info["kv_total_blocks"] == blocks
        assert (ring("vllm-0.ring").rank, ring("vllm-1.ring").rank) == (0, 1)
        del first


def test_of_several_api_servers_none_can_tell_the_whole(plugin, tmp_path, told):
    parallel = config().parallel_config
    parallel._api_process_count = 2
    logger = plugin.StepRingLogger(config(parallel_config=parallel), 0)
    logger.record(scheduler(), iteration())
    assert list(tmp_path.iterdir()) == []
    assert len(told()) == 1


def test_it_can_be_switched_off(plugin, tmp_path, told, monkeypatch):
    monkeypatch.setenv("GPUWATCH_RING", "off")
    plugin.StepRingLogger(config(), 0).record(scheduler(), iteration())
    assert (list(tmp_path.iterdir()), told()) == ([], [])


def test_a_place_that_cannot_be_written_is_said_once(plugin, tmp_path, told, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GPUWATCH_RING_DIR", str(tmp_path / "file" / "below"))
    logger = plugin.StepRingLogger(config(), 0)
    for _ in range(3):
        logger.record(scheduler(), iteration(finished=[finished()]))
        logger.log()
        logger.log_engine_initialized()
        logger.record_sleep_state(0, 0)
    assert len(told()) == 1
    assert "no step ring is written" in told()[0]


@pytest.mark.parametrize("broken", [object(), 7, "text", scheduler(usage="half"), scheduler(running=None)])
def test_stats_of_another_kind_end_the_ring_and_not_the_engine(plugin, ring, told, broken):
    logger = plugin.StepRingLogger(config(), 0)
    logger.record(scheduler(), iteration(generated=1))
    logger.record(broken, iteration())
    logger.record(scheduler(), iteration())
    assert ring().completed(0).last >= 1, "what was written stays"
    assert len(told()) <= 1


@pytest.mark.parametrize(
    "broken", [None, object(), config(cache_config=None, scheduler_config=None, model_config=None)]
)
def test_a_configuration_of_another_kind_says_less(plugin, ring, broken):
    logger = plugin.StepRingLogger(broken, 0)
    logger.record(scheduler(), iteration(generated=3))
    step = last(ring())
    assert (step["generated_tokens_total"], step["kv_usage_ratio"], step["kv_used_blocks"]) == (3, 0.5, None)


def test_positional_and_unknown_arguments_of_other_versions_are_taken(plugin, ring):
    logger = plugin.StepRingLogger(vllm_config=config(), engine_index=0)
    logger.record(scheduler(), iteration(generated=1), None, 0)
    logger.record(scheduler_stats=scheduler(), iteration_stats=iteration(generated=1), from_the_future=1)
    assert last(ring())["generated_tokens_total"] == 2


@pytest.mark.parametrize(
    ("command", "port"),
    [
        ("vllm serve M", 8000),
        ("vllm serve M --port 9000", 9000),
        ("vllm serve M --port=9001", 9001),
        ("vllm serve M --port", None),
        ("vllm serve M --config c.yaml", None),
        ("vllm serve M --uds /run/s", None),
        ("my_program.py", None),
        ("/x/vllm/entrypoints/openai/api_server.py --model M", 8000),
    ],
)
def test_the_port_is_said_where_the_command_line_says_it(plugin, command, port):
    from gpuwatch_vllm.facts import port_of

    assert port_of(command.split()) == port
