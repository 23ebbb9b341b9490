"""Prefill and decode on separate devices: how KV travels, who waits for what, and that nothing is lost on the way."""

import io
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_shim.demand.scenario import parse_scenario
from engine_shim.faults import Slowdown
from engine_shim.request import Stage
from engine_shim.serving import ServeOptions, build
from engine_shim.settings.engine import EngineSettings
from engine_shim.simulation.assemble import simulate
from engine_shim.simulation.disaggregated.link import TransferLink
from engine_shim.studies.disaggregated import APART, CHAT, ENGINE, LONG, gaps_s, play_fleet
from engine_shim.studies.played import play_load

KV_BYTES = EngineSettings(model="7b").kv_bytes_per_token

BAD = {
    "half of it": ({"prefill_devices": 1}, "set both to at least 1"),
    "fewer than none": ({"prefill_devices": -1, "decode_devices": 1}, "prefill_devices must be between 0 and 64"),
    "no bandwidth": ({**APART, "kv_transfer_bytes_per_s": 0.0}, "kv_transfer_bytes_per_s must be between"),
    "no latency": ({**APART, "kv_transfer_latency_s": -1.0}, "kv_transfer_latency_s must be between"),
    "static": ({**APART, "batching": "static"}, "no meaning where prefill and decode are apart"),
}


@pytest.mark.parametrize(("table", "message"), BAD.values(), ids=BAD.keys())
def test_settings_without_sense_are_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineSettings.from_table(table)


def test_the_server_says_that_it_runs_one_engine_only() -> None:
    with pytest.raises(ValueError, match="play prefill and decode apart with `simulate`"):
        build(ServeOptions(runner="model"), {"model": "7b", **APART})


def test_transfers_take_their_turn_on_the_link() -> None:
    """Bandwidth is shared by going one after another; latency comes on top and holds nobody up."""
    link = TransferLink(1000.0, 0.5)
    assert [link.send(2000.0, 10.0), link.send(1000.0, 10.0), link.send(1000.0, 20.0)] == [12.5, 13.5, 21.5]
    assert (link.under_way(11.0), link.queued(11.0)) == (3, 2)
    assert (link.under_way(12.5), link.queued(12.5), link.bytes) == (2, 1, 2000.0)
    assert (link.under_way(21.5), link.bytes, link.seconds.sum) == (0, 4000.0, 2.5 + 1.5 + 1.5)


def test_a_slow_link_is_slow_while_it_is() -> None:
    link = TransferLink(1000.0, 0.0, [Slowdown(10.0, 20.0, 0.1, "slow_transfer")])
    assert link.send(1000.0, 5.0) == 6.0
    assert link.send(2000.0, 9.0) == pytest.approx(20.0)
    assert link.send(1000.0, 25.0) == 26.0


def test_a_request_passes_both_engines() -> None:
    """Queue, prefill, hand-over, wait for blocks, transfer at the link's speed, last token, decode."""
    load = {"arrivals": "uniform", "rate_per_s": 0.5, "prompt_tokens": 4000, "output_tokens": 10}
    fleet = play_fleet(ENGINE | APART | {"kv_transfer_bytes_per_s": 1e9, "kv_transfer_latency_s": 0.02}, [load], 20.0)
    assert len(fleet.left) >= 8
    for request in fleet.left:
        names = [stage.name for stage, _, _ in request.stages]
        assert names == ["QUEUE", "PREFILL", "DECODE", "QUEUE", "TRANSFER", "PREFILL", "DECODE"]
        assert all(a[2] == b[1] for a, b in zip(request.stages, request.stages[1:], strict=False))
        assert (request.finish_reason, request.output_tokens) == ("length", 10)
        assert request.arrived_at < request.first_token_at < request.finished_at
    np.testing.assert_allclose(fleet.stage_s(Stage.TRANSFER), 3999 * KV_BYTES / 1e9 + 0.02, rtol=1e-6)
    prefill, decode = fleet.prefill[0].engine.counters, fleet.decode[0].engine.counters
    assert prefill.prompt_tokens == decode.prompt_tokens == 4000 * len(fleet.left)
    assert (prefill.generated_tokens, decode.generated_tokens) == (len(fleet.left), 10 * len(fleet.left))


def test_long_prompts_no_longer_stall_tokens() -> None:
    """The decode engine's gaps stay even while an engine that does both stalls for as long as a chunk takes."""
    fleet = play_fleet(ENGINE | APART, [CHAT, LONG], 45.0)
    apart = gaps_s(fleet.watched[fleet.decode[0]].columns, fleet.start)
    half = [load | {"rate_per_s": load["rate_per_s"] / 2} for load in (CHAT, LONG)]
    mixed = play_load(ENGINE, half, seconds=45.0)
    assert apart.max() < 2 * np.median(apart)
    assert gaps_s(mixed.steps, mixed.start).max() > 10 * np.median(apart)


def test_a_slow_network_shows_in_the_transfer_and_a_full_pool_in_the_wait_before_it() -> None:
    """Two causes of the same stall, apart: the second does not touch the transfers' speed."""
    loads = [CHAT | {"rate_per_s": 8.0}]
    slow = play_fleet(ENGINE | APART | {"kv_transfer_bytes_per_s": 0.9e9}, loads, 40.0)
    full = play_fleet(ENGINE | APART | {"kv_pool_tokens": 14_000}, loads, 40.0)
    slow_wait, slow_transfer = slow.stage_s(Stage.QUEUE, 1), slow.stage_s(Stage.TRANSFER)
    full_wait, full_transfer = full.stage_s(Stage.QUEUE, 1), full.stage_s(Stage.TRANSFER)
    assert np.percentile(slow_transfer, 90) > 1.0 > np.percentile(slow_wait, 90)
    assert np.percentile(full_wait, 90) > 1.0 > np.percentile(full_transfer, 90)
    per_transfer = [fleet.decode[0].link.seconds for fleet in (slow, full)]
    assert per_transfer[0].sum / per_transfer[0].cumulative()[-1] > 0.1
    assert per_transfer[1].sum / per_transfer[1].cumulative()[-1] < 0.01


def test_kv_that_nobody_fetches_fills_the_prefill_engine() -> None:
    """Which then admits nobody, although it computes nothing."""
    fleet = play_fleet(
        ENGINE | APART | {"kv_transfer_bytes_per_s": 0.3e9, "kv_pool_tokens": 40_000},
        [CHAT | {"rate_per_s": 8.0}],
        40.0,
    )
    steps = fleet.watched[fleet.prefill[0]].columns
    late = steps["begun_at"] > fleet.start + 25.0
    assert steps["kv_used_blocks"][late].mean() > 0.8 * steps["kv_total_blocks"][0]
    assert steps["waiting"][late].min() > 10
    assert steps["running"][late].mean() < 2
    assert fleet.prefill[0].engine.scheduler.kv_transfers > 10


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    prefill=st.integers(1, 3),
    decode=st.integers(1, 3),
    pool_blocks=st.integers(60, 400),
    link=st.sampled_from([2e8, 1e9, 5e10]),
    order=st.sampled_from(["fifo", "priority", "shortest_prompt"]),
    reserve=st.sampled_from(["none", "prompt", "max_tokens"]),
    admission=st.sampled_from(["fifo", "bypass"]),
    prefix=st.sampled_from([0, 64]),
)
def test_nothing_is_lost_between_the_engines(
    seed: int, prefill: int, decode: int, pool_blocks: int, link: float, order: str, reserve: str, admission: str,
    prefix: int,
) -> None:  # fmt: skip
    """When load stops, everybody has been served, both pools are whole, and each byte was sent for a reason."""
    table = {
        "model": "7b", "kv_pool_tokens": 16 * pool_blocks, "max_num_seqs": 6, "prefill_devices": prefill,
        "decode_devices": decode, "kv_transfer_bytes_per_s": link, "scheduling": order, "reserve": reserve,
        "admission": admission, "watermark_ratio": 0.0,
    }  # fmt: skip
    load = {
        "rate_per_s": 6.0, "until_s": 4.0, "prompt_tokens": {"uniform": [1, 500]}, "output_tokens": {"uniform": [1, 300]},
        "shared_prefix_tokens": prefix, "priority": "batch",
    }  # fmt: skip
    fleet = play_fleet(table, [load, load | {"name": "chat", "priority": "interactive"}], 90.0, seed)
    ids = {r.id for r in fleet.left}
    assert len(ids) == len(fleet.left) > 5
    assert all(r.output_tokens == r.stop_after and r.finish_reason == "length" for r in fleet.left)
    for instance in (*fleet.prefill, *fleet.decode):
        engine = instance.engine
        left_behind = [*engine.scheduler.running, *engine.scheduler.waiting]
        assert (left_behind, engine.scheduler.kv_transfers) == ([], 0)
        assert engine.pool.used_blocks == engine.pool.held_slots_tokens == engine.scheduler.written_tokens == 0
        assert engine.scheduler.admission.reserved_blocks == instance.outstanding_tokens == 0
    arrived = sum(instance.engine.counters.arrived for instance in fleet.decode)
    assert arrived == sum(instance.engine.counters.finished for instance in fleet.prefill) == len(fleet.left)
    for instance in fleet.decode:
        instance.link.settle(fleet.start + 90.0)
    sent_bytes = sum(instance.link.bytes for instance in fleet.decode)
    cached = sum(instance.engine.counters.cached_tokens for instance in fleet.decode)
    assert sent_bytes == pytest.approx(KV_BYTES * (sum(r.prompt_tokens - 1 for r in fleet.left) - cached))


SCENARIO: dict[str, Any] = {
    "about": "Chat on engines of which prefill and decode are apart.",
    "duration_s": 40,
    "engine": {"model": "7b", **APART},
    "load": [{"rate_per_s": 6.0, "prompt_tokens": 2000, "output_tokens": 100}],
    "expect": {"class": "none"},
}


def stream(**changes: Any) -> list[dict[str, Any]]:
    """The world stream of the scenario with some tables replaced."""
    out = io.BytesIO()
    scenario = parse_scenario({**SCENARIO, **changes}, file="apart.toml", stem="apart", device="h100")
    simulate(scenario, out, device="h100", seed=1)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_the_world_stream_has_each_engine_as_a_subject_of_its_own() -> None:
    """One header, one end, two engines with pages, steps, spans and devices; the same request has one hash on both."""
    lines = stream()
    assert [("gpuwatch_capture" in line, line.get("src") == "end") for line in (lines[0], lines[-1])] == [
        (True, False),
        (False, True),
    ]
    assert sum("gpuwatch_capture" in line or line.get("src") == "end" for line in lines) == 2
    names = {(line["engine"], line["rank"]) for line in lines[1:]}
    assert names == {("shim-prefill", 0), ("shim-decode", 0)}
    gpus = {(line["engine"], line["subject"]["gpu"]) for line in lines if line.get("src") == "readings"}
    assert len(gpus) == len({gpu for _, gpu in gpus}) == 2
    spans = {name: {} for name, _ in names}
    for line in lines:
        if line.get("src") == "spans":
            for request, stage in zip(line["cols"]["request"], line["cols"]["stage"], strict=True):
                spans[line["engine"]].setdefault(request, []).append(stage)
    assert {tuple(stages) for stages in spans["shim-decode"].values()} == {
        ("request", "queue", "transfer", "prefill", "decode")
    }
    assert spans["shim-decode"].keys() <= spans["shim-prefill"].keys()
    page = [line["body"] for line in lines if line.get("src") == "page" and line["engine"] == "shim-decode"][-1]
    assert float(page.split("\nshim:kv_transfer_bytes_total ")[1].split()[0]) > 200 * 1999 * KV_BYTES
    assert any("kv_transfers" in line["cols"] for line in lines if line.get("src") == "steps")


def test_a_slow_link_can_be_switched_on_for_a_while() -> None:
    """Transfers queue up while it lasts, and the same fault is refused where there is no link."""
    fault = {"kind": "slow_transfer", "at_s": 10, "until_s": 25, "factor": 50}
    waiting = [
        (line["t"] - 1764000000.0, line["cols"]["kv_transfers"])
        for line in stream(fault=[fault])
        if line.get("src") == "steps" and line["engine"] == "shim-decode" and line["cols"].get("kv_transfers")
    ]
    most = {
        phase: max(max(v) for t, v in waiting if low < t <= low + 9) for phase, low in (("before", 1), ("slow", 16))
    }
    assert most["slow"] > 10 > 3 > most["before"]
    with pytest.raises(ValueError, match="set prefill_devices and decode_devices"):
        stream(fault=[fault], engine={"model": "7b"})
    with pytest.raises(ValueError, match="a hung_step is played on a single engine only"):
        stream(fault=[{"kind": "hung_step", "at_s": 1, "until_s": 2}])


def test_the_same_seed_gives_the_same_bytes() -> None:
    assert stream() == stream()
