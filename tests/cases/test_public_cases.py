"""Public reports end to end: the lines and pages that people posted, read as `gpuwatch diagnose` reads them.

Each gets the cause that was established, or an honest "unknown" with the right candidates, or nothing where nothing is
wrong. Reports that gave numbers without lines are built as the looks that they describe.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from gpuwatch.clues import cannot_tell
from gpuwatch.clues.clue import ONE_LOOK
from gpuwatch.config import Config
from gpuwatch.diagnose import examine
from gpuwatch.incidents.verdict import text, to_json
from gpuwatch.model import Incident, Subject, Verdict
from tests.clues.looks import Evidence, candidates_of, first, judged, named

FOLDER = Path(__file__).parent
TABLE = tomllib.loads((FOLDER / "table.toml").read_text())
RANK = {"info": 0, "ticket": 1, "page": 2}


@cache
def verdict_on(name: str) -> Verdict:
    path = next(p for p in FOLDER.glob(f"{name}.*") if p.suffix in (".log", ".prom"))
    return examine([str(path)], Config()).verdict


def incidents_of(name: str) -> tuple[Incident, ...]:
    return verdict_on(name).incidents


def test_every_file_is_in_the_table_and_every_row_has_a_file():
    files = {p.stem for p in FOLDER.iterdir() if p.suffix in (".log", ".prom")}
    assert files == set(TABLE)


@pytest.mark.parametrize("name", sorted(TABLE))
def test_a_public_report_gets_its_cause_or_an_honest_answer(name: str):
    row, found = TABLE[name], incidents_of(name)
    if row["says"] == "nothing":
        assert found == ()
        return
    assert [i.rule for i in found] == [row["says"]], "one incident, and no second one beside it"
    incident = found[0]
    assert RANK[incident.severity] <= RANK[row.get("severity", "ticket")]
    assert candidates_of(incident) >= set(row.get("or", ()))
    assert {r.rule for r in incident.ruled_out} >= set(row.get("not", ()))
    assert incident.evidence, "a verdict rests on numbers"
    assert 0.25 <= incident.confidence <= 0.95


@pytest.mark.parametrize("name", sorted(TABLE))
def test_the_verdict_prints_and_encodes(name: str):
    assert to_json(verdict_on(name))
    assert not re.search(r"\bnan\b", text(verdict_on(name)), re.IGNORECASE)


@pytest.mark.parametrize("name", ["07-admits-nobody", "10-one-of-four-idle", "11-saturated-line", "51-admission-spent"])
def test_one_look_without_a_message_stays_modest(name: str):
    assert all(i.confidence <= ONE_LOOK for i in incidents_of(name))


def test_the_same_file_gives_the_same_verdict_to_the_byte():
    a, b = (to_json(examine([str(FOLDER / "05-pool-held-for-hours.log")], Config()).verdict) for _ in range(2))
    assert a == b


def test_15_threads_of_the_node_in_a_small_container():
    evidence = Evidence().gpu(0, util=0.35, sm=0.3)
    for n in range(4):
        evidence.look(
            10 * n,
            req_running=22,
            req_waiting=1,
            kv_usage_ratio=0.2,
            cgroup_cpu_throttled_ratio=0.85,
            process_cpu_ratio=4.0,
            generated_tokens_total=300 * n,
        )
    found = first(evidence)
    assert found.rule == "host_cpu_throttling"
    assert "overload" in {r.rule for r in found.ruled_out}


def test_17_a_newer_build_that_is_slower_at_the_same_load():
    evidence = Evidence()
    for n in range(10):
        rate = 664.0 if n < 5 else 120.0
        evidence.line(10 * n, running=16, waiting=0, kv=0.12, gen=rate, prompt=800.0)
    evidence.event(45, "version", Subject("e1"), {"what": "0.23.0 → 0.25.1"})
    found = first(evidence)
    assert found.rule == "step_time_regression"
    assert found.action == "rollback"


def test_27_work_after_a_disconnect_cannot_be_told_from_load_on_the_engine_s_side():
    evidence = Evidence()
    for n in range(12):
        evidence.look(
            15 * n,
            req_running=8,
            req_waiting=0,
            kv_usage_ratio=0.1,
            req_aborted_total=0,
            generated_tokens_total=3000 * n,
        )
    assert named(evidence) == []
    assert any("Nothing shows single requests" in line for line in cannot_tell(evidence.calls))


def test_28_ninety_bytes_a_request():
    evidence = Evidence()
    for n in range(145):
        evidence.look(
            300 * n,
            req_running=6,
            req_waiting=0,
            kv_usage_ratio=0.05,
            process_memory_bytes=6.00 * 2**30 + 90 * 45_000 * n,
            req_finished_total=45_000 * n,
            generated_tokens_total=45_000 * n,
        )
    found = first(evidence)
    assert found.rule == "host_memory_leak"
    assert next(e.observed for e in found.evidence if e.signal == "bytes for each request") == pytest.approx(
        90, rel=0.05
    )


def test_29_sixteen_adapters_on_eight_slots():
    evidence = Evidence("sglang")
    for n in range(3):
        evidence.look(
            10 * n,
            req_running=8,
            req_waiting=40,
            kv_usage_ratio=0.2,
            lora_slots=8,
            lora_slots_used=8,
            lora_running_adapters=8,
            lora_waiting_adapters=8,
            generated_tokens_total=400 * n,
        )
    found = first(evidence)
    assert (found.rule, found.mechanism) == ("admission_deferred", "adapter")
    assert any("batch limit" in no for no in found.not_now)


def test_30_transfers_that_wait_for_decode_memory():
    evidence = Evidence("sglang")
    for n in range(3):
        evidence.look(
            20 * n,
            req_running=48,
            req_waiting=0,
            req_waiting_prealloc=90 - n,
            req_transferring=3,
            kv_usage_ratio=0.99,
            generated_tokens_total=4000 * n,
        )
    found = first(evidence)
    assert (found.rule, found.mechanism) == ("pd_transfer_stall", "decode_memory")


def test_32_eager_admission_that_pauses_what_it_admitted():
    evidence = Evidence("trtllm")
    for n in range(3):
        evidence.look(
            10 * n, req_running=60, req_waiting=40, req_paused=14, kv_usage_ratio=0.99, generated_tokens_total=960 * n
        )
    found = first(evidence)
    assert found.rule == "preemption_storm"
    assert any("GUARANTEED_NO_EVICT" in a.knob for a in found.advice)


def test_36_a_probe_that_restarts_what_only_needs_time():
    evidence = Evidence("tgi")
    for n in range(3):
        evidence.say(60 * n, "queue_full", times=30).say(60 * n + 5, "health_failed").say(60 * n + 20, "restarted")
    found = first(evidence)
    assert (found.rule, found.mechanism) == ("overload", "probe_restarts")
    assert "engine_crash" in {r.rule for r in found.ruled_out}


def test_39_the_pool_is_smaller_than_at_the_start_before():
    evidence = Evidence().facts(kv_capacity_tokens=38_600).facts(600, kv_capacity_tokens=15_000)
    evidence.look(700, req_running=12, req_waiting=20, kv_usage_ratio=0.99)
    assert first(evidence).rule == "gpu_noisy_neighbor"


def test_48_a_low_clock_is_the_effect():
    evidence = Evidence("llamacpp")
    evidence.gpu(0, util=0.3, clock=1.89e9, clock_max=2.625e9, power=16, power_limit=80, celsius=46, throttled=0.0)
    for n in range(3):
        evidence.look(5 * n, req_running=1, req_waiting=0, steps_total=35 * n, kv_usage_ratio=0.3)
    found = first(evidence)
    assert found.rule == "unknown"
    assert candidates_of(found) >= {"host_io_contention", "frontend_cpu_bottleneck"}
    assert "gpu_throttling" in {r.rule for r in found.ruled_out}


def test_52_workers_that_spin_while_nothing_runs():
    evidence = Evidence()
    for n in range(6):
        evidence.look(10 * n, req_running=0, req_waiting=0, process_cpu_ratio=1.0, generated_tokens_total=77)
    assert named(evidence) == []


def test_55_sessions_pinned_to_one_replica():
    evidence = Evidence("")
    for n in range(4):
        for k, (running, waiting, kv) in enumerate(((40, 60, 1.0), (2, 0, 0.08), (1, 0, 0.05), (2, 0, 0.07))):
            evidence.look(
                10 * n,
                f"replica{k}",
                req_running=running,
                req_waiting=waiting,
                kv_usage_ratio=kv,
                req_preempted_total=40 * n if not k else 0,
                req_finished_total=30 * n,
                generated_tokens_total=900 * n,
            )
    found = judged(evidence)
    assert [i.rule for i in found if i.severity != "info"] == ["replica_imbalance"]
    assert "preemption_storm" in {s.rule for s in found[0].symptoms}
    assert any("replica that suffers" in no for no in found[0].not_now)


def test_58_one_event_loop_in_front_of_an_idle_engine():
    evidence = Evidence().gpu(0, util=0.62, sm=0.55)
    for n in range(4):
        evidence.look(
            10 * n,
            req_running=180,
            req_waiting=1,
            kv_usage_ratio=0.3,
            process_cpu_ratio=1.0,
            generated_tokens_total=128_500 * n,
        )
        evidence.histogram(10 * n, "ttft_seconds", 2400.0 * n, 640.0 * n)
        evidence.histogram(10 * n, "queue_seconds", 6.0 * n, 640.0 * n)
        evidence.histogram(10 * n, "prefill_seconds", 32.0 * n, 640.0 * n)
    assert first(evidence).rule == "frontend_cpu_bottleneck"
