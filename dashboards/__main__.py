"""`python -m dashboards` writes json/; `--check` only says what is not current, with exit code 1."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import triage
from .grid import to_json

FOLDER = Path(__file__).parent / "json"
DASHBOARDS = {"triage": triage.build}


def main(arguments: list[str] | None = None) -> int:
    """Write or check every dashboard."""
    parser = argparse.ArgumentParser(prog="python -m dashboards", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file is not current")
    check = parser.parse_args(arguments).check
    stale = []
    for name, build in DASHBOARDS.items():
        path = FOLDER / f"{name}.json"
        wanted = to_json(build())
        if path.exists() and path.read_text("utf-8") == wanted:
            continue
        stale.append(str(path))
        if not check:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(wanted, "utf-8")
    for path_name in stale:
        sys.stderr.write(f"{path_name} {'is not current; run python -m dashboards' if check else 'written'}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
