"""The demo for real, short: PyTorch engine, HTTP clients and the agent with all its sources, in real time."""

from __future__ import annotations

import json
import subprocess
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from gpuwatch.recording.capsule import Capsule
from tests.demo.run_cli import CLI, demo, scenario

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch (pip install 'gpuwatch[engine]')")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Eight seconds of light load on the tiny model."""
    folder = tmp_path_factory.mktemp("real")
    path = scenario(folder, 8, "tiny")
    before = {p.pid for p in psutil.process_iter()}
    done = demo(str(path), "--json", "--out", str(folder / "out"), timeout_s=120)
    left = [p for p in psutil.process_iter() if p.pid not in before and "engine_shim" in " ".join(_words(p))]
    assert not [p for p in left if str(folder) in " ".join(_words(p))]
    return done, folder / "out"


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_every_source_has_spoken(real) -> None:
    """Page, step ring, spans, host and changes; none of them only failed."""
    done, _ = real
    assert done.returncode == 0, done.stderr
    sources = {s["role"]: s for s in json.loads(done.stdout)["sources"]}
    assert {"engine", "steps", "spans", "host"} <= set(sources)
    assert all(sources[role]["errors"] < sources[role]["polls"] for role in ("engine", "steps", "spans", "host"))


def test_requests_were_really_served(real) -> None:
    """Finished requests with a queue, a prefill and a decode of their own, in the capsule and in the report."""
    done, out = real
    assert "requests answered" not in done.stdout
    spans = [s for _, batches in Capsule.open(out / "run.capsule").calls() for b in batches for s in b.spans]
    assert sum(len(s.request) for s in spans) >= 3 * 8
    assert "The slowest requests" in (out / "postmortem.html").read_text()
    assert Capsule.open(out / "run.capsule").header.clock == "real"


def test_the_capsule_replays_to_the_same_verdict(real) -> None:
    """What the live agent saw is enough to say it again."""
    done, out = real
    again = subprocess.run(
        [*CLI, "replay", str(out / "run.capsule"), "--json"], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(again.stdout) == json.loads(done.stdout)


def test_nothing_is_left_but_the_files(real) -> None:
    """Four files; the agent's state, ring and sockets were in a temporary folder."""
    _, out = real
    assert sorted(p.name for p in out.iterdir()) == ["postmortem.html", "postmortem.md", "run.capsule", "verdict.json"]
