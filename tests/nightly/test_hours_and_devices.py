"""Too long for every push: six simulated hours of each healthy control; all classes on four devices with five seeds.

`python -m pytest -m nightly -n 2 --dist load tests/nightly`
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.scores.case import Case, expectation, stems
from tests.bench.scores.judge import deviations, is_harmful
from tests.bench.scores.play import judged, run

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
HEALTHY = [stem for stem in stems() if stem.startswith("healthy_")]
CLASSES = [stem for stem in stems() if expectation(stem)["class"] != "none"]
HOURS_S = 6 * 3600


@pytest.mark.parametrize("device", ["h100", "a100"])
@pytest.mark.parametrize("stem", HEALTHY)
def test_six_hours_of_a_healthy_engine_bring_no_incident(stem: str, device: str):
    """Through a pipe: the world of six hours is a gigabyte, and the agent reads it as it comes."""
    command = ["-m", "engine_shim", "simulate", stem, "--device", device, "--duration", str(HOURS_S), "--out", "-"]
    opened = []
    with subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE) as engine:
        pipeline = judged(engine.stdout, lambda tick: opened.extend(tick.transitions))
    assert engine.returncode == 0
    assert opened == []
    assert pipeline.verdict().incidents == ()


@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("device", ["h100", "h200", "a100", "l40s"])
@pytest.mark.parametrize("stem", CLASSES)
def test_the_verdict_is_the_same_on_every_device_and_for_every_seed(stem: str, device: str, seed: int):
    found = run(Case(stem, device, seed))
    assert deviations(found) == ()
    assert not is_harmful(found)
