"""Faults one by one: what each acts on, and that conditions come and go as their tables say."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_shim.clock import VirtualClock
from engine_shim.demand.impatience import Impatience, Retry
from engine_shim.devices.profile_file import device_named
from engine_shim.engine.engine import Engine
from engine_shim.faults import KINDS, Faults, fault_from_table
from engine_shim.faults.host import CpuQuota, Quota
from engine_shim.faults.table import _keys
from engine_shim.request import Stage
from engine_shim.runners.modelled.runner import ModelRunner
from engine_shim.settings.engine import EngineSettings
from engine_shim.simulation.play import play
from tests.shim.playing import Transcript, request, steady

DOCS = Path(__file__).parents[2] / "docs" / "faults.md"
START = 1000.0


def fault(kind: str, **keys: float) -> Any:
    return fault_from_table({"kind": kind, "at_s": 0, **keys}, START)


def run(*faults: Any, seconds: float = 20.0, fuse: bool = True, rate_per_s: float = 4.0, **settings: Any) -> Any:
    """A run of a 7b engine with faults: its transcript and the engine."""
    checked = EngineSettings.from_table({"model": "7b", "kv_pool_tokens": 16_000, **settings})
    profile = device_named("h100")
    told, broken = Transcript(), Faults(faults)
    engine = Engine(
        checked, checked.pool_blocks(profile), ModelRunner(checked, profile), VirtualClock(START), told,
        broken.scheduler(),
    )  # fmt: skip
    load = steady(1, rate_per_s, seconds, (20, 600), (50, 200))
    play(engine, load, until=START + seconds, observer=told, faults=broken, fuse=fuse)
    return told, engine


def test_the_page_lists_every_kind_with_its_keys_and_where_it_is_live() -> None:
    rows = {
        m[1]: (m[2], m[3])
        for m in re.finditer(r"^\| `(\w+)` \| (.*?) \|.*\| (\S+) \|$", DOCS.read_text(), re.MULTILINE)
    }
    assert set(rows) == set(KINDS)
    for name, kind in KINDS.items():
        keys, live = rows[name]
        assert re.findall(r"`(\w+)`", keys) == list(_keys(kind)), name
        assert live == (kind.live or "–"), name


DEVICE_FAULTS = [
    fault("clock_limit", ratio=0.4),
    fault("step_creep", percent_per_min=100),
    fault("neighbor", dram_share=0.5, on_s=3, off_s=2),
    fault("block_leak", blocks_per_min=600),
]


@pytest.mark.parametrize("broken", DEVICE_FAULTS, ids=lambda f: f.kind)
def test_computed_at_once_or_step_by_step_the_records_are_the_same(broken: Any) -> None:
    fused, plain = (run(broken, seconds=12.0, fuse=fuse)[0].columns for fuse in (True, False))
    for name, values in fused.items():
        assert np.array_equal(values, plain[name]), name


def test_a_tenant_slows_the_engine_while_it_works_and_not_when_it_is_isolated() -> None:
    def step_s(isolated: int) -> tuple[float, float]:
        told, _ = run(fault("neighbor", dram_share=0.6, on_s=5, off_s=5, isolated=isolated), seconds=30.0)
        begun, lasted = told.columns["begun_at"] - START, told.columns["ended_at"] - told.columns["begun_at"]
        decode = told.columns["prefill_tokens"] == 0
        works = begun % 10 < 5
        return float(np.median(lasted[decode & works])), float(np.median(lasted[decode & ~works]))

    works, rests = step_s(isolated=0)
    assert works > 1.8 * rests
    always, never = step_s(isolated=1)
    assert always == pytest.approx(never, rel=0.05)
    assert always == pytest.approx(works, rel=0.1)


def test_a_device_with_a_tenant_shows_both_and_a_cut_one_only_the_engine() -> None:
    shared, _ = run(fault("neighbor", dram_share=0.6, sm_share=0.5))
    cut, _ = run(fault("neighbor", dram_share=0.6, sm_share=0.5, isolated=1))
    assert shared.readings["dram_active_ratio"].mean() > cut.readings["dram_active_ratio"].mean() + 0.3


def test_a_restart_ends_a_creep_and_a_leak() -> None:
    told, engine = run(
        fault("step_creep", percent_per_min=600), fault("block_leak", blocks_per_min=1200),
        fault_from_table({"kind": "restart", "at_s": 20, "down_s": 1}, START), seconds=26.0,
    )  # fmt: skip
    begun, lasted = told.columns["begun_at"] - START, told.columns["ended_at"] - told.columns["begun_at"]
    decode = told.columns["prefill_tokens"] == 0
    late, after = (np.median(lasted[decode & (begun > low) & (begun < high)]) for low, high in ((17, 20), (21, 24)))
    assert late > 1.8 * after
    used = told.columns["kv_used_blocks"]
    assert used[begun < 20][-1] > 300
    assert used[begun > 21][0] < 100
    assert engine.epoch == 2


def test_stalled_requests_keep_their_kv_and_go_on_afterwards() -> None:
    told, engine = run(fault("stalled_client", until_s=10, share=1.0, buffer_tokens=5), seconds=30.0, rate_per_s=1.0)
    begun = told.columns["begun_at"] - START
    during = (begun > 5) & (begun < 10)
    assert told.columns["running"][during].min() >= 3
    assert told.columns["decode_tokens"][during].max() <= 2
    assert len(told.done) > 20
    assert not engine.scheduler.stalled
    assert all(r.output_tokens == r.stop_after for r in told.done)


def test_deferred_requests_hold_no_kv_and_all_come_in_at_last() -> None:
    told, engine = run(fault("adapter_load", until_s=1000, adapters=6, slots=2, load_s=0.3), seconds=40.0, rate_per_s=1)
    assert len(told.done) > 25
    waits = [end - start for r in told.done for stage, start, end in r.stages if stage is Stage.QUEUE]
    assert max(waits) > 0.3
    assert engine.pool.free_blocks >= 0
    assert {r.finish_reason for r in told.done} == {"length"}


def test_a_grammar_pool_of_two_serves_two_at_a_time() -> None:
    told, _ = run(fault("grammar_compile", compile_s=0.9, threads=2), seconds=30.0, rate_per_s=2.0)
    firsts = sorted(r.first_token_at for r in told.done)
    assert len(firsts) == pytest.approx(2 / 0.9 * 28, rel=0.2)


def test_an_abort_frees_blocks_unless_it_is_lost() -> None:
    class Leaving:
        """One request whose client goes after a second."""

        reacts = impatient = True

        def __init__(self) -> None:
            self.coming = [request("r", 100, 2000)]
            self.gone = False

        def peek(self) -> float:
            return START if self.coming else float("inf")

        def take(self) -> Any:
            return self.coming.pop()

        def next_leave(self) -> float:
            return float("inf") if self.gone else START + 1

        def leaving(self, now: float) -> list[str]:
            due = not self.gone and now >= START + 1
            self.gone = self.gone or due
            return ["r"] if due else []

    def tokens(*faults: Any) -> int:
        told, broken = Transcript(), Faults(faults)
        settings = EngineSettings.from_table({"model": "7b", "kv_pool_tokens": 16_000})
        engine = Engine(
            settings, 1000, ModelRunner(settings, device_named("h100")), VirtualClock(START), told, broken.scheduler()
        )
        play(engine, Leaving(), until=START + 30, observer=told, faults=broken)  # type: ignore[arg-type]
        assert engine.pool.used_blocks == 0
        return told.done[0].output_tokens

    assert tokens() < 250
    assert tokens(fault("lost_abort")) == 2000


@given(
    st.floats(0.05, 1.0),
    st.lists(st.tuples(st.floats(0, 0.3), st.floats(0, 0.4)), min_size=1, max_size=30),
)
def test_a_quota_gives_no_more_cpu_than_it_allows_and_never_less_than_is_free(
    ratio: float, work: list[tuple[float, float]]
) -> None:
    """Over any run of periods the CPU used is at most the quota's; nothing ends before its work is done."""
    quota = Quota(CpuQuota(START, 1e9, "cpu_quota", ratio))
    now, used = START, 0.0
    for pause_s, cpu_s in work:
        now += pause_s
        end = quota.runs_until(now, cpu_s)
        assert end >= now + cpu_s - 1e-6
        now, used = end, used + cpu_s
    periods = np.floor((now - START) / 0.1 + 1e-5) + 1
    assert used <= periods * ratio * 0.1 + 1e-6
    assert 0 <= quota.throttled_ratio(now) <= 1


def test_clients_try_again_with_growing_pauses_and_not_for_ever() -> None:
    impatience, sent = Impatience(), [START]

    def send(at: float, attempt: int) -> Any:
        asked = request(f"r{attempt}", 10, 5, at)
        impatience.watch(asked, float("inf"), Retry(2.0, 3, 1.0), attempt, lambda later: send(later, attempt + 1))
        return asked

    send(START, 1)
    while (at := min(impatience.next_leave(), impatience.next_again())) < float("inf"):
        impatience.leaving(at)
        if impatience.next_again() <= at:
            sent.append(impatience.take_again().arrived_at)
    assert sent == [START, START + 3, START + 7]
    assert impatience.retries == 2


def test_an_oom_kill_ends_the_life_of_a_leaking_process() -> None:
    told, engine = run(fault("host_memory_leak", bytes_per_request=1e9, limit_bytes=24e9, down_s=2), seconds=25.0)
    assert ("down", "oom") in [(what, detail.get("cause")) for what, _, detail in told.events]
    assert engine.epoch >= 2


def test_an_oversized_request_blocks_the_head_of_the_queue() -> None:
    told, _ = run(fault("oversized_request", pool_ratio=1.5), reserve="prompt")
    assert not [r for r in told.done if r.finish_reason == "length"]
    assert told.columns["head_need_blocks"].max() == 1500
