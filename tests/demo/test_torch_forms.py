"""The forms for the real engine are right before they are played: here on a modelled device whose steps take what they ask for.

What `least_step_s` makes of a CPU is a device that needs so long for any step. The real plays are in tests/nightly.
"""

from __future__ import annotations

import io
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from engine_shim.demand.scenario import load_scenario
from engine_shim.devices.profile_file import device_text
from engine_shim.devices.profiles import DEVICES
from engine_shim.simulation.assemble import simulate
from gpuwatch.sources.files.capture import read_capture
from tests.bench.scores.play import Seen, judged, seen

SCENARIOS = Path(__file__).parents[1] / "scenarios"
FORMS = tuple(sorted(file.stem for file in (SCENARIOS / "torch").glob("*.toml")))
ILL = tuple(stem for stem in FORMS if not stem.startswith("healthy_"))
PER_TOKEN_S = 4e-5  # what a token of a prompt costs the tiny model on a CPU
BUSY_MACHINE = 1.6  # so many times as long as asked for a step may take


@cache
def table(stem: str, folder: str = "torch") -> dict[str, Any]:
    return tomllib.loads((SCENARIOS / folder / f"{stem}.toml").read_text(encoding="utf-8"))


def played(stem: str, folder: Path, seed: int = 1, slower: float = 1.0, cured: bool = False) -> tuple[Seen, ...]:
    """The verdict on one play in virtual time."""
    step_s = table(stem)["engine"]["least_step_s"] * slower
    device = replace(DEVICES["h100"], name="cpu", launch_s=step_s, per_token_s=PER_TOKEN_S, per_sequence_s=1e-6)
    profile = folder / "cpu.toml"
    profile.write_text(device_text(device, {}))
    scenario = load_scenario(SCENARIOS / "torch" / f"{stem}.toml", str(profile))
    out = io.BytesIO()
    simulate(scenario.cured() if cured else scenario, out, device=str(profile), seed=seed)
    start = read_capture(io.BytesIO(out.getvalue())).header.t
    return seen(judged(io.BytesIO(out.getvalue())).verdict(), start)


def test_an_incident_of_each_kind_and_a_healthy_engine_can_be_shown_for_real():
    """Admission, a dead engine, demand, and nothing at all."""
    assert set(FORMS) >= {"batch_thrashing", "head_of_line_blocking", "engine_hang", "overload", "healthy_steady"}


@pytest.mark.parametrize("stem", FORMS)
def test_a_form_is_about_what_its_scenario_is_about(stem: str):
    """The same class by the same name; an engine of steady speed; most of them over in a minute and a half."""
    form, scenario = table(stem), table(stem, ".")
    assert form["expect"]["class"] == scenario["expect"]["class"]
    assert form["engine"]["least_step_s"] >= 0.02
    assert form["engine"]["model"] == "tiny"
    assert form["duration_s"] <= (125 if stem == "batch_thrashing" else 90)
    assert "cure" in form or stem.startswith("healthy_")


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("stem", ILL)
def test_the_class_is_named_in_time(stem: str, seed: int, tmp_path: Path):
    """On a machine that keeps the pace, whatever the seed."""
    expect, found = table(stem)["expect"], played(stem, tmp_path, seed)
    assert [s.rule for s in found] == [expect["class"]]
    assert expect["between_s"][0] <= found[0].detected_s <= expect["between_s"][1]


@pytest.mark.parametrize("stem", [stem for stem in ILL if stem != "batch_thrashing"])
def test_a_machine_that_is_too_busy_for_the_pace_changes_no_class(stem: str, tmp_path: Path):
    """Steps take more than half as long again; only times move."""
    assert [s.rule for s in played(stem, tmp_path, slower=BUSY_MACHINE)] == [table(stem)["expect"]["class"]]


@pytest.mark.parametrize("slower", [1.0, BUSY_MACHINE])
def test_nothing_is_said_of_the_healthy_one(slower: float, tmp_path: Path):
    assert played("healthy_steady", tmp_path, slower=slower) == ()


@pytest.mark.parametrize("stem", ILL)
def test_the_cure_cures_it(stem: str, tmp_path: Path):
    """The class is gone on the same demand."""
    assert table(stem)["expect"]["class"] not in [s.rule for s in played(stem, tmp_path, cured=True)]
