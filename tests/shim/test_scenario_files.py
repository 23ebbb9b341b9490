"""Scenario files: the shipped ones are right, and every kind of wrong one is refused with file and key."""

from pathlib import Path
from typing import Any

import pytest

from engine_shim.demand.scenario import Scenario, ScenarioError, load_scenario
from engine_shim.devices.profiles import DEVICES

SHIPPED = sorted((Path(__file__).parents[1] / "scenarios").glob("*.toml"))

GOOD = """
about = "A test."
duration_s = 60

[engine]
model = "7b"
kv_pool_tokens = 16000

[device.a100]
max_num_seqs = 12

[[load]]
name = "chat"
rate_per_s = 2.0
prompt_tokens = { lognormal = 400, sigma = 0.8, min = 16, max = 4000 }
output_tokens = { uniform = [50, 300] }

[[fault]]
kind = "hung_step"
at_s = 20
until_s = 30

[expect]
class = "engine_hang"
between_s = [20, 40]

[cure]
drop_faults = true
"""

# what is replaced · by what · the key that the message names · what it says
BAD = {
    "not TOML": ("duration_s = 60", "duration_s = ", "", "is not TOML"),
    "no duration": ("duration_s = 60", "", "duration_s", "is missing"),
    "negative duration": ("duration_s = 60", "duration_s = -1", "duration_s", "between 0 and"),
    "unknown top key": ("duration_s = 60", "duration_s = 60\ncolour = 3", "colour", "unknown key"),
    "typing error": ("rate_per_s", "rate_pers", "load[0].rate_pers", "did you mean rate_per_s"),
    "word for a number": ("rate_per_s = 2.0", 'rate_per_s = "fast"', "load[0].rate_per_s", "expected"),
    "no rate": ("rate_per_s = 2.0", "", "load[0].rate_per_s", "exactly one of rate_per_s and rho"),
    "two rates": ("rate_per_s = 2.0", "rate_per_s = 2.0\nrho = 0.5", "load[0].rate_per_s", "exactly one"),
    "zero rate": ("rate_per_s = 2.0", "rate_per_s = 0", "load[0].rate_per_s", "above 0"),
    "unknown arrivals": ("rate_per_s = 2.0", 'arrivals = "storm"\nrate_per_s = 2.0', "load[0].arrivals", "storm"),
    "gamma without cv": ("rate_per_s = 2.0", 'arrivals = "gamma"\nrate_per_s = 2.0', "load[0].cv", "needs it"),
    "cv without gamma": ("rate_per_s = 2.0", "rate_per_s = 2.0\ncv = 2", "load[0].cv", "no meaning"),
    "rate of a closed loop": ("rate_per_s = 2.0", 'arrivals = "closed"\nconcurrency = 3\nrho = 1', "load[0].rho", "closed"),
    "ends before it begins": ("rate_per_s = 2.0", "rate_per_s = 2.0\nuntil_s = 5\nfrom_s = 9", "load[0].until_s", "after"),
    "no prompt length": ("prompt_tokens = {", "# {", "load[0].prompt_tokens", "is missing"),
    "backward range": ("[50, 300]", "[300, 50]", "load[0].output_tokens.uniform", "backwards"),
    "fraction of a token": ("[50, 300]", "[50, 300.5]", "load[0].output_tokens.uniform", "whole number"),
    "unknown length": ("uniform = [50, 300]", "zipf = 3", "load[0].output_tokens", "exactly one of"),
    "two lengths": ("uniform = [50, 300]", "uniform = [5, 30], fixed = 3", "load[0].output_tokens", "exactly one of"),
    "stray length key": ("uniform = [50, 300]", "uniform = [5, 30], sigma = 3", "load[0].output_tokens.sigma", "unknown"),
    "shares": ("uniform = [50, 300]", "mix = [{share = 0.5, fixed = 3}]", "load[0].output_tokens.mix", "sum to 0.5"),
    "pool share": ("uniform = [50, 300]", "pool_uniform = [0.1, 2]", "load[0].output_tokens.pool_uniform", "≤ 1"),
    "deep in a mix": (
        "uniform = [50, 300]", "mix = [{share = 1, uniform = [9, 1]}]", "load[0].output_tokens.mix[0].uniform", "back",
    ),
    "unknown engine key": ("kv_pool_tokens", "kv_pool_token", "engine", "did you mean 'kv_pool_tokens'"),
    "unknown model": ('"7b"', '"9b"', "engine", "9b"),
    "bad admission": ('model = "7b"', 'model = "7b"\nadmission = "lifo"', "engine", "fifo, bypass"),
    "unknown device": ("[device.a100]", "[device.a1000]", "device.a1000", "did you mean a100"),
    "override of another device": ("max_num_seqs = 12", "max_num_seqs = 0", "device.a100", "at least 1"),
    "unknown fault": ('"hung_step"', '"gremlins"', "fault[0]", "gremlins"),
    "fault without end": ("until_s = 30", "", "fault[0]", "until_s"),
    "fault after the end": ("at_s = 20\nuntil_s = 30", "at_s = 70\nuntil_s = 90", "fault[0].at_s", "within the duration"),
    "no expectation": ('class = "engine_hang"', "", "expect.class", "is missing"),
    "no interval": ("between_s = [20, 40]", "", "expect.between_s", "is needed"),
    "interval outside": ("between_s = [20, 40]", "between_s = [20, 400]", "expect.between_s", "within"),
    "opening nothing": ('"engine_hang"', '"none"', "expect.between_s", "nothing"),
    "cure of a stream that is not there": ("drop_faults = true", 'drop_streams = ["x"]', "cure.drop_streams", "known: chat"),
    "cure that drops all": ("drop_faults = true", 'drop_streams = ["chat"]', "cure.drop_streams", "every"),
    "cure with a bad knob": ("drop_faults = true", "engine = { max_num_seqs = 0 }", "cure.engine", "at least 1"),
    "cure that adds load": ("drop_faults = true", "load_scale = 3", "cure.load_scale", "at most 1"),
}  # fmt: skip


def load(tmp_path: Path, text: str, device: str = "h100", **more: Any) -> Scenario:
    file = tmp_path / "test.toml"
    file.write_text(text)
    return load_scenario(file, device, **more)


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_file_is_refused_with_file_and_key(tmp_path: Path, name: str):
    old, new, key, message = BAD[name]
    assert old in GOOD
    with pytest.raises(ScenarioError) as error:
        load(tmp_path, GOOD.replace(old, new))
    assert str(tmp_path / "test.toml") in str(error.value)
    assert error.value.key == key, str(error.value)
    assert message in str(error.value)


def test_no_load_is_refused(tmp_path: Path):
    with pytest.raises(ScenarioError, match=r"test.toml: load: is missing"):
        load(tmp_path, 'about = ""\nduration_s = 5\n[expect]\nclass = "none"')


def test_two_streams_of_one_name_would_be_twins(tmp_path: Path):
    again = '[[load]]\nname = "chat"\nrho = 0.5\nprompt_tokens = 9\noutput_tokens = 9\n[expect]'
    with pytest.raises(ScenarioError, match=r"load\[1\].name: there are two streams called 'chat'"):
        load(tmp_path, GOOD.replace("[expect]", again))


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(ScenarioError, match="No such file"):
        load_scenario(tmp_path / "none.toml", "h100")


def test_a_device_overrides_the_engine(tmp_path: Path):
    assert load(tmp_path, GOOD, "h100").engine.max_num_seqs == 64
    assert load(tmp_path, GOOD, "a100").engine.max_num_seqs == 12


def test_keys_can_be_set_from_outside(tmp_path: Path):
    changes = [("engine.admission", "bypass"), ("load[0].rate_per_s", "7"), ("load[0].until_s", "9.5")]
    scenario = load(tmp_path, GOOD, changes=changes)
    assert (scenario.engine.admission, scenario.streams[0].rate_per_s, scenario.streams[0].until_s) == (
        "bypass",
        7,
        9.5,
    )


@pytest.mark.parametrize("key", ["load[3].rho", "load[x].rho", "load.rho", "about.x", "load[0]x.y"])
def test_a_place_that_is_not_there_cannot_be_set(tmp_path: Path, key: str):
    with pytest.raises(ScenarioError, match="--set"):
        load(tmp_path, GOOD, changes=[(key, "1")])


def test_a_cure_changes_the_engine_and_not_the_demand(tmp_path: Path):
    text = GOOD.replace("drop_faults = true", 'drop_faults = true\nengine = { admission = "bypass" }\nload_scale = 0.5')
    scenario = load(tmp_path, text)
    cured = scenario.cured()
    assert (cured.engine.admission, cured.demand_engine.admission) == ("bypass", "fifo")
    assert (cured.fault_tables, cured.streams[0].kept) == ((), 0.5)
    assert cured.streams[0].prompt == scenario.streams[0].prompt


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_shipped_scenarios_are_valid_everywhere(file: Path):
    """On each device, with an expectation; healthy ones expect nothing, the others name a cure."""
    for device in DEVICES:
        scenario = load_scenario(file, device)
        assert 240 <= scenario.duration_s <= 600
    healthy = file.stem.startswith("healthy_")
    assert (scenario.expect.class_ == "none") == healthy
    assert (scenario.cure is None) == healthy
    if scenario.expect.between_s is not None:
        assert scenario.expect.between_s[0] >= 60
