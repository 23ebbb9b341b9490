"""`python -m engine_shim --help` names everything that can be run, and what it names runs."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from click.testing import CliRunner

from engine_shim import studies
from engine_shim.cli import main
from engine_shim.studies import STUDIES


def test_help_names_every_command_and_every_study():
    """With a few words for each, in the width of a terminal."""
    done = subprocess.run(
        [sys.executable, "-m", "engine_shim", "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    words = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.startswith("  ")}
    for name in ("calibrate", "schedule", "serve", "simulate", *STUDIES):
        assert len(words[name]) >= 3, name
    assert max(map(len, done.stdout.splitlines())) <= 90


def test_every_study_that_runs_is_named_and_every_named_one_runs():
    """A study is a module with a `main` of its own; the others are parts of several."""
    found = {
        module.name
        for module in pkgutil.iter_modules(studies.__path__)
        if 'if __name__ == "__main__"' in Path(studies.__path__[0], f"{module.name}.py").read_text()
    }
    assert set(STUDIES) == found
    assert all(find_spec(f"engine_shim.studies.{name}") for name in STUDIES)


def test_calibrate_is_the_same_command_by_either_name():
    apart = importlib.import_module("engine_shim.calibrate.command").main
    done = CliRunner().invoke(main, ["calibrate", "--out", "profile.txt"])
    assert (done.exit_code, "must end in .toml" in done.output) == (2, True)
    assert main.get_command(None, "calibrate") is apart  # type: ignore[arg-type]
