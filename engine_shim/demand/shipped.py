"""Where scenario files lie that are shipped, and how one is found by its name."""

from __future__ import annotations

from pathlib import Path

import click

_HERE = Path(__file__).resolve().parents[2]
# Beside a checkout's package, and where the wheel puts them.
SCENARIO_FOLDERS = (_HERE / "tests" / "scenarios", _HERE / "gpuwatch" / "scenarios")

# Scenarios of classes that have no rule yet lie apart: what plays all of them against the rules must not meet them.
SCENARIO_PARTS = (".", "coming")


def find_scenario(name: str) -> Path:
    """The file of a scenario by path or by name. UsageError lists the known names."""
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():
        return path
    folders = [folder / part for part in SCENARIO_PARTS for folder in SCENARIO_FOLDERS]
    for folder in folders:
        candidate = folder / f"{name}.toml"
        if candidate.is_file():
            return candidate
    known = dict.fromkeys(file.stem for folder in folders for file in sorted(folder.glob("*.toml")))
    raise click.UsageError(f"no scenario {name!r}; give a path, or one of: {', '.join(known) or '(none found)'}")
