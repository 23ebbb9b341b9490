"""The golden Markdown postmortem: `python -m tests.report.golden` writes it anew; review the difference."""

from __future__ import annotations

from pathlib import Path

from gpuwatch.report import render_markdown
from tests.report import sample

FOLDER = Path(__file__).parent / "golden"
CASES = {"batch_thrashing": sample.report, "healthy": sample.healthy, "unknown": sample.undecided}


def main() -> None:
    """Write every golden file."""
    for name, case in CASES.items():
        (FOLDER / f"{name}.md").write_text(render_markdown(case()), "utf-8")


if __name__ == "__main__":
    main()
