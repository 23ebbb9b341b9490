"""The four files of a demo: the capsule, and what its replay says. So `gpuwatch replay run.capsule` says the same."""

from __future__ import annotations

from pathlib import Path

from ..model import Verdict
from ..recording.capsule import Capsule

CAPSULE = "run.capsule"
FILES = ("verdict.json", "postmortem.html", "postmortem.md", CAPSULE)


def write_files(folder: Path) -> Verdict:
    """Replay the folder's capsule and write verdict and postmortem beside it. Raises OSError, CapsuleError."""
    from ..incidents.verdict import to_json
    from ..report import collect, write_report

    capsule = Capsule.open(folder / CAPSULE)
    header = capsule.header
    data = collect(
        capsule.calls(), header.config, capsule.snapshot, capsule=CAPSULE, meta={"clock": header.clock, **header.meta}
    )
    part = folder / "verdict.json.part"
    part.write_bytes(to_json(data.verdict) + b"\n")
    part.replace(folder / "verdict.json")
    write_report(data, folder / "postmortem.html", folder / "postmortem.md")
    return data.verdict
