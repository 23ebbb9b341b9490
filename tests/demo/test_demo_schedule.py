"""The schedule of a scenario for the real engine: the demand of the file, options that `serve` takes, errors that help."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine_shim.cli import main as engine_cli
from engine_shim.demand.schedule import serve_arguments
from engine_shim.settings.engine import EngineSettings
from gpuwatch.demo.problem import DemoError
from gpuwatch.demo.schedule import Header, read_schedule
from tests.demo.run_cli import scenario

TORCH_FORMS = sorted((Path(__file__).parents[1] / "scenarios" / "torch").glob("*.toml"))


def test_the_same_seed_asks_the_same() -> None:
    """Reproducible; another seed asks something else; times ascend within the duration."""
    header, first = read_schedule("batch_thrashing", 1)
    assert read_schedule("batch_thrashing", 1)[1] == first
    assert read_schedule("batch_thrashing", 2)[1] != first
    times = [a.at_s for a in first]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] <= header.duration_s


@pytest.mark.parametrize("path", TORCH_FORMS, ids=lambda p: p.stem)
def test_every_torch_form_is_short_and_stays_within_the_pool(path: Path) -> None:
    """A demo lasts at most 150 seconds, and no request could never fit."""
    header, arrivals = read_schedule(path.stem, 1)
    pool = int(header.serve[header.serve.index("--kv-pool-tokens") + 1])
    assert header.duration_s <= 150
    assert all(a.prompt_tokens + a.max_tokens < pool for a in arrivals)


def test_the_founding_case_shifts_lengths_and_not_the_rate() -> None:
    """Arrivals are as many before the shift as after it; long prompts come only after it, a few per cent."""
    _, arrivals = read_schedule("batch_thrashing", 1)
    before = [a for a in arrivals if a.at_s < 36]
    after = [a for a in arrivals if a.at_s >= 36]
    long = [a for a in arrivals if a.prompt_tokens > 2000]
    assert 0.75 < (len(before) / 36) / (len(after) / 89) < 1.35
    assert all(a.at_s >= 36 for a in long)
    assert 0.02 < len(long) / len(after) < 0.09


def test_serve_understands_every_setting() -> None:
    """A settings object that differs everywhere becomes options, and each is one that `serve` has."""
    command = engine_cli.get_command(None, "serve")  # type: ignore[arg-type]
    known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
    odd = EngineSettings(
        max_num_seqs=8, max_step_tokens=64, chunked_prefill=False, kv_pool_tokens=4096, watermark_ratio=0.2,
        admission="bypass", reserve="max_tokens", prefix_cache=False, least_step_s=0.01, max_waiting=7,
    )  # fmt: skip
    arguments = serve_arguments(odd)
    assert {a for a in arguments if a.startswith("--")} <= known
    assert "--no-chunked-prefill" in arguments
    assert arguments[arguments.index("--least-step-s") + 1] == "0.01"
    assert serve_arguments(EngineSettings()) == []
    assert len(dataclasses.fields(EngineSettings)) >= len(arguments) / 2


def test_faults_are_told_for_an_engine_that_starts_earlier() -> None:
    """Times of faults count from the load's beginning; the engine is older."""
    header = Header(1, "x", 60.0, [], [{"kind": "hung_step", "at_s": 20, "until_s": 40}])
    assert header.fault_options(3.0) == ["--fault", "hung_step:at_s=23.0,until_s=43.0"]


REFUSED = {
    "a closed loop": ('arrivals = "poisson"\nrate_per_s = 3.0', 'arrivals = "closed"\nconcurrency = 4', "closed loop"),
    "a load factor": ("rate_per_s = 3.0", "rho = 0.7", "rate_per_s"),
    "no pool": ("kv_pool_tokens = 8000", "", "kv_pool_tokens"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_only_a_model_can_play_is_refused_by_file_and_key(case: str, tmp_path: Path) -> None:
    """The message names the file and what to write instead."""
    old, new, hint = REFUSED[case]
    path = scenario(tmp_path, 20, "tiny")
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DemoError, match=r"short\.toml.*") as caught:
        read_schedule(str(path), 1)
    assert hint in str(caught.value)


def test_a_scenario_without_a_form_for_it_lists_those_that_have_one() -> None:
    """The modelled scenarios are not played on a CPU by mistake."""
    with pytest.raises(DemoError, match="batch_thrashing"):
        read_schedule("traffic_surge", 1)


def test_every_line_is_json_and_holds_no_text() -> None:
    """Lengths, times and names of streams; there are no prompts anywhere."""
    command = [sys.executable, "-m", "engine_shim", "schedule", "batch_thrashing"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    keys = {key for line in done.stdout.splitlines()[1:] for key in json.loads(line)}
    assert keys == {"at_s", "prompt_tokens", "max_tokens", "tenant", "shared_prefix_tokens", "stream"}
