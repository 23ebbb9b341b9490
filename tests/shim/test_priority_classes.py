"""Priority classes from end to end: where a request gets its class, and what an engine shows of each."""

import json
from typing import Any

import pytest

from engine_shim.clock import VirtualClock
from engine_shim.devices.profile_file import device_named
from engine_shim.engine.engine import Engine
from engine_shim.http.protocol import ApiError, Ask, ServedModel, read_completion
from engine_shim.model.tokens import CharTokenizer
from engine_shim.policies import queue_rank
from engine_shim.request import Request
from engine_shim.runners.modelled.runner import ModelRunner
from engine_shim.settings.engine import EngineSettings
from engine_shim.studies import policies
from engine_shim.studies.played import play_load
from engine_shim.telemetry import EngineInfo, EngineTelemetry, build_telemetry
from tests.shim.playing import request

# -- what is shown -------------------------------------------------------------------------------------------------------


def page_of(telemetry: EngineTelemetry) -> dict[str, float]:
    """Series and values of the engine's page."""
    lines = telemetry.render().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def shown(settings: dict[str, Any], requests: list[Request], steps: int) -> tuple[EngineTelemetry, Engine]:
    """An engine with its real telemetry after some steps."""
    checked = EngineSettings.from_table({"model": "7b", "kv_pool_tokens": 16_000, **settings})
    clock = VirtualClock(1000.0)
    facts = EngineInfo(
        engine="shim", model="7b", version="0", kv_total_blocks=1000, block_tokens=16,
        max_num_seqs=checked.max_num_seqs, max_model_len=checked.max_model_len, started_at=1000.0,
        arguments=checked.arguments(),
    )  # fmt: skip
    telemetry = build_telemetry(facts, clock.now, salt=b"test", otlp_endpoint="")
    telemetry.live.rank = queue_rank(checked, clock.now)
    engine = Engine(checked, 1000, ModelRunner(checked, device_named("h100")), clock, telemetry)
    for new in requests:
        engine.add(new)
    for _ in range(steps):
        engine.step()
    return telemetry, engine


def test_classes_are_shown_apart() -> None:
    requests = [
        request("job1", 100, 90, priority=1), request("job2", 100, 90, 1000.0, priority=1),
        request("job3", 100, 90, 1000.0, priority=1), request("chat1", 100, 1, 1000.0), request("chat2", 100, 30, 1000.0),
    ]  # fmt: skip
    telemetry, engine = shown({"scheduling": "priority", "max_num_seqs": 2}, requests, steps=20)
    page = page_of(telemetry)
    assert page['shim:class_requests_waiting{class="batch"}'] == 2
    assert page['shim:class_requests_waiting{class="interactive"}'] == 0
    assert page['shim:class_oldest_wait_seconds{class="batch"}'] == pytest.approx(engine.clock.now() - 1000.0)
    assert page['shim:class_time_to_first_token_seconds_count{class="interactive"}'] == 2
    assert page['shim:class_time_to_first_token_seconds_count{class="batch"}'] == 1
    first_tokens_s = sum(r.first_token_at - r.arrived_at for r in requests if not r.priority)
    assert page['shim:class_time_to_first_token_seconds_sum{class="interactive"}'] == pytest.approx(first_tokens_s)
    assert not any("class_" in name for name in page_of(shown({}, requests[:1], 1)[0]))


@pytest.mark.parametrize(
    "policy",
    [{}, {"scheduling": "priority"}, {"scheduling": "shortest_prompt", "wait_limit_s": 0.05}],
    ids=["fifo", "priority", "shortest_prompt"],
)
def test_the_queue_is_shown_in_the_schedulers_order(policy: dict[str, Any]) -> None:
    """The head's wait is that of the request whose turn it is, and the table begins with it."""
    requests = [request(f"r{i}", 300 - 20 * i, 80, priority=i % 2) for i in range(9)]
    telemetry, engine = shown(policy | {"max_num_seqs": 3}, requests, steps=15)
    head = engine.scheduler.waiting.head
    assert telemetry.live.head() is head
    assert [r for r, _ in telemetry.live.rows(64)][:6] == list(engine.scheduler.waiting)
    assert page_of(telemetry)['shim:head_wait_seconds{model_name="7b"}'] == engine.clock.now() - head.stage_since


# -- where the class comes from ------------------------------------------------------------------------------------------


def ask(body: dict[str, Any], has_priorities: bool) -> Ask:
    model = ServedModel("tiny", CharTokenizer(256), 256, 1000, 1000, has_priorities=has_priorities)
    return read_completion(json.dumps({"prompt": "hello", **body}).encode(), model)


@pytest.mark.parametrize(
    ("sent", "priority"), [({}, 0), ({"priority": 0}, 0), ({"priority": -3}, 0), ({"priority": 7}, 1)]
)
def test_a_clients_priority_above_zero_is_batch_work(sent: dict[str, int], priority: int) -> None:
    assert ask(sent, has_priorities=True).priority == priority


def test_a_priority_is_refused_where_it_would_be_ignored() -> None:
    """As vLLM does; 0 is what everybody has."""
    with pytest.raises(ApiError, match="does not schedule by priority") as refusal:
        ask({"priority": 1}, has_priorities=False)
    assert (refusal.value.status, refusal.value.param) == (400, "priority")
    assert ask({"priority": 0}, has_priorities=False).priority == 0


def test_a_streams_requests_have_its_class() -> None:
    run = play_load({"model": "7b"}, [policies.BATCH | {"concurrency": 2}], seconds=5.0)
    assert {r.priority for r in run.left} == {1}
    with pytest.raises(ValueError, match="Invalid enum value 'urgent'"):
        play_load({"model": "7b"}, [policies.BATCH | {"priority": "urgent"}], seconds=5.0)
