"""The one call: bounds, time, several engines, muted rules, and whatever a source may bring."""

from __future__ import annotations

import math
import random

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwatch.catalog import CATALOG
from gpuwatch.config import Config, EngineTarget, Maintenance
from gpuwatch.incidents.verdict import text, to_json
from gpuwatch.model import Batch, Frame, Subject
from gpuwatch.pipeline import MAX_SUBJECTS, Pipeline
from gpuwatch.rules import load_rules
from gpuwatch.testing import START, InFlight, ToyEngine, World


def frame(subject: Subject, at: float, **signals: float) -> Batch:
    values = np.array([list(signals.values())])
    return Batch(
        "page", "engine", subject, at, frames=(Frame(subject, "page", tuple(signals), np.array([at]), values),)
    )


def test_time_does_not_run_backwards():
    pipeline = Pipeline()
    pipeline.step(START, ())
    pipeline.step(START, ())
    with pytest.raises(ValueError, match="backwards"):
        pipeline.step(START - 0.001, ())


def test_an_empty_pipeline_has_a_verdict():
    tick = Pipeline().step(START, ())
    assert (tick.states, tick.findings, tick.transitions, tick.open) == ((), (), (), ())
    assert Pipeline().verdict().incidents == ()


def test_subjects_are_bounded_and_what_is_cut_is_counted():
    """A source that invents subjects does not fill the memory."""
    pipeline = Pipeline()
    for k in range(3):
        pipeline.step(START + k, [frame(Subject(host=f"h{i}"), START + k, host_cpu_ratio=0.1) for i in range(400)])
    assert len(pipeline.subjects()) == MAX_SUBJECTS
    assert len(pipeline.verdict().sources) <= MAX_SUBJECTS
    assert pipeline.cut >= 3 * (400 - MAX_SUBJECTS)


def test_every_engine_is_judged_by_itself():
    """One hangs, its neighbour serves."""
    worlds = [World(engine="a"), World(engine="b")]
    pipeline, ticks = Pipeline(), []
    for world in worlds:
        world.run(30, req_running=4.0, req_waiting=1.0, generated_tokens_total=50.0)
    worlds[0].hang(running=4.0)
    for world in worlds:
        world.run(70)
    for (now, ours), (_, theirs) in zip(worlds[0].calls, worlds[1].calls, strict=True):
        ticks.append(pipeline.step(now, [*ours, *theirs]))
    assert [(i.rule, i.subject["engine"]) for i in pipeline.verdict().incidents] == [("engine_hang", "a")]
    assert {s.subject.engine for s in ticks[-1].states} == {"a", "b"}
    assert pipeline.verdict().state.subject.engine == "a", "the engine in the worst shape is shown"


def test_devices_serve_the_engine_that_the_configuration_names():
    config = Config(engines=(EngineTarget(url="http://x", name="a", gpus=("GPU-1",)),))
    pipeline = Pipeline(config)
    gpus = [frame(Subject(gpu=g), START, gpu_dram_active_ratio=0.5) for g in ("GPU-1", "GPU-2")]
    pipeline.step(START, [frame(Subject(engine="a"), START, req_running=1.0), *gpus])
    assert [g.subject.gpu for g in pipeline.window(Subject(engine="a")).gpus] == ["GPU-1"]


def test_a_lone_engine_and_a_lone_device_belong_together_and_more_need_a_map():
    for engines, expected in ((("a",), 1), (("a", "b"), 0)):
        pipeline = Pipeline()
        batches = [frame(Subject(engine=e), START, req_running=1.0) for e in engines]
        pipeline.step(START, [*batches, frame(Subject(gpu="GPU-1"), START, gpu_dram_active_ratio=0.5)])
        assert len(pipeline.window(Subject(engine="a")).gpus) == expected


def test_a_muted_rule_is_not_asked():
    muted = Pipeline(Config(muted=("overload", "engine_hang")))
    assert set(muted.rules) == set(load_rules()) - {"overload", "engine_hang"}
    tick = muted.step(START, [frame(Subject(engine="a"), START, req_running=1.0)])
    assert not {b.rule for b in tick.blind} & {"overload", "engine_hang"}


def test_parameters_come_from_the_configuration():
    pipeline = Pipeline(Config(rules={"engine_hang": {"suspect_s": 30.0}}))
    assert pipeline.params["engine_hang"].suspect_s == 30.0
    with pytest.raises(msgspec.ValidationError):
        Pipeline(Config(rules={"engine_hang": {"suspect": 30.0}}))


def test_a_rule_that_cannot_see_says_so_with_its_cure():
    world = World(sees="page")
    blind = world.run(5, req_running=1.0)[-1].blind
    assert {b.rule for b in blind} >= {"engine_hang", "overload"}
    assert all(b.missing and b.cure and b.subject == "engine/shim/0" for b in blind)


def test_levels_are_those_of_the_last_second():
    world = World()
    world.run(5, req_running=7.0)
    assert world.pipeline.level(world.subject, "req_running") == 7.0
    assert math.isnan(world.pipeline.level(world.subject, "req_waiting"))
    assert math.isnan(world.pipeline.level(Subject(engine="nobody"), "req_running"))
    world.fail("steps")
    world.run(10)
    assert math.isnan(world.pipeline.level(world.subject, "req_running"))


def test_derived_signals_are_kept_beside_the_engines_own():
    toy = ToyEngine()
    toy.load(4)
    toy.run(60)
    assert toy.pipeline.level(toy.subject, "arrival_rate_per_second") == pytest.approx(4, rel=0.4)
    assert toy.pipeline.level(toy.subject, "good_ratio") == 1.0


def test_a_baseline_does_not_learn_from_an_incident():
    """A long incident does not become the usual."""
    toy = ToyEngine()
    toy.load(4)
    toy.run(100)
    usual = toy.pipeline.baselines[toy.subject.key].usual("ttft_p95_s")
    toy.load(8)
    toy.run(120)
    assert toy.pipeline.baselines[toy.subject.key].usual("ttft_p95_s") <= 2 * usual


def test_announced_maintenance_makes_incidents_info():
    toy = ToyEngine(Config(maintenance=(Maintenance(START, START + 1000),)))
    toy.load(5)
    toy.run(60)
    toy.load(8)
    toy.run(90)
    assert {i.severity for i in toy.pipeline.verdict().incidents} == {"info"}


def test_the_objective_counts_every_request_once():
    toy = ToyEngine(sees="ring")
    toy.load(4)
    toy.run(60)
    total, good = toy.pipeline.slo_counts(toy.subject)["ttft_p95"]
    assert total == toy.totals["finished"]
    assert good == total


# --- whatever may come -----------------------------------------------------------------------------------------------

NAMES = sorted(n for n, s in CATALOG.items() if s.kind != "histogram" and not n.startswith("gpu_"))
NASTY = [0.0, 1.0, -1.0, 1e308, -1e308, 5e-324, math.inf, -math.inf, math.nan, 2.0**53, 1e-9]


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32), st.sampled_from(["ring", "page"]))
def test_nothing_that_a_source_shows_stops_the_pipeline(seed, sees):
    """Impossible values, frozen ones, gaps and failures: the answer may be "unknown", but there is one."""
    rnd = random.Random(seed)
    world = World(gpu="GPU-1", sees=sees)
    for _ in range(14):
        for name in rnd.sample(NAMES, 12):
            world.set(**{name: rnd.choice(NASTY)})
        world.set(gpu_dram_active_ratio=rnd.choice(NASTY), gpu_tensor_active_ratio=rnd.choice(NASTY))
        if rnd.random() < 0.5:
            at = world.now - rnd.choice([0.0, 3.0, 1e6, -50.0])
            world.finish(rnd.randrange(99), at, rnd.choice([0.0, 5.0, -1.0]), rnd.choice([0.0, 1.0]))
            world.in_flight(InFlight(i, at, rnd.choice([1, 2, 3, 4, 9]), *rnd.choices(NASTY, k=5)) for i in range(9))
        if rnd.random() < 0.3:
            world.hang(*rnd.choices(NASTY, k=3))
        if rnd.random() < 0.2:
            world.resume()
        if rnd.random() < 0.2:
            world.fail(rnd.choice(["engine", "steps", "gpu"]))
        if rnd.random() < 0.2:
            world.event(rnd.choice(["restart", "change", "maintenance"]), until_at=rnd.choice(["1e99", "nan", "x"]))
        world.run(rnd.choice([1, 5, 30]))
    verdict = world.pipeline.verdict()
    msgspec.json.decode(to_json(verdict))
    assert text(verdict).isascii() or "\x1b" not in text(verdict)
    Pipeline.restore(None, world.pipeline.snapshot())


def test_a_rule_that_fails_is_blind_and_silences_nobody():
    """A fault in one rule is said and counted; the others judge on."""
    world = World()

    def broken(_w: object, _p: object) -> None:
        raise ZeroDivisionError("division by zero")

    rule = world.pipeline.rules["overload"]
    world.pipeline.rules["overload"] = msgspec.structs.replace(rule, check=broken)
    ticks = world.run(3, req_running=1.0)
    assert ticks[-1].states
    assert [b.missing for b in ticks[-1].blind if b.rule == "overload"] == [
        ("the rule failed: ZeroDivisionError: division by zero",)
    ]
    assert world.pipeline.failed_rules == {"overload": 3}
