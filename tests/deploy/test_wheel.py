"""The wheel: both packages, scenarios and runbooks, and not the studies; what it holds runs where nothing else lies."""

import os
import subprocess
import sys
import zipfile

import pytest

from tests.metric_names import REPOSITORY


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The wheel's files, built without a network by the back end that pyproject.toml names."""
    pytest.importorskip("hatchling", reason="the build back end is not installed here")
    folder = tmp_path_factory.mktemp("wheel")
    build = "import sys, hatchling.build; print(hatchling.build.build_wheel(sys.argv[1]))"
    command = [sys.executable, "-c", build, str(folder)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, timeout=120)
    (made,) = folder.glob("*.whl")
    with zipfile.ZipFile(made) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(site, *words):
    """`python -m` with the wheel's files first on the path, away from the checkout."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(site)}
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=site, env=environment, check=True, capture_output=True, text=True, timeout=60)


def test_the_wheel_holds_every_module_but_the_studies(unpacked):
    inside = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*.py")}
    here = {
        path.relative_to(REPOSITORY).as_posix()
        for package in ("gpuwatch", "engine_shim")
        for path in (REPOSITORY / package).rglob("*.py")
    }
    studies = {name for name in here if name.startswith("engine_shim/studies/")}
    assert studies
    assert inside == here - studies
    assert list(unpacked.glob("engine_shim/studies*")) == []


def test_the_engines_help_names_no_study_that_the_wheel_has_not(unpacked):
    text = run(unpacked, "engine_shim", "--help").stdout
    assert ("simulate" in text, "engine_shim.studies" in text) == (True, False)


def test_a_shipped_scenario_plays_from_the_wheel(unpacked):
    """By its name: scenarios lie in the other package there."""
    scenario = unpacked / "gpuwatch" / "scenarios" / "batch_thrashing.toml"
    assert scenario.is_file()
    words = ["engine_shim", "simulate", "batch_thrashing", "--duration", "2", "--out", "run.jsonl"]
    run(unpacked, *words)
    assert (unpacked / "run.jsonl").stat().st_size > 0
