"""Every test has the same id in every process: workers that collect in different seconds must agree before any test runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Ids here are long or computed. When all tests run, all of them are collected again.
SAMPLE = ("tests/test_same_ids.py", "tests/shim/test_trace.py", "tests/logs/test_repair.py")


def collect(paths: list[str], hash_seed: str) -> set[str]:
    """Ids as another process makes them, with another order of sets and another time zone."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:xdist", "-m", "", "--collect-only", "-q", *paths],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "TZ": "Pacific/Chatham"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return {line for line in done.stdout.splitlines() if "::" in line}


def test_another_process_gives_the_same_ids(request: pytest.FixtureRequest):
    here = {item.nodeid for item in request.session.items}
    files = sorted({nodeid.partition("::")[0] for nodeid in here})
    assert here <= collect(files, hash_seed="7"), "give these parameters an id"


def test_a_sample_is_the_same_under_two_hash_seeds():
    first, second = (collect(list(SAMPLE), seed) for seed in ("1", "2"))
    assert first == second
    assert any("test_trace.py::" in line for line in first)


@pytest.mark.parametrize("raw", [b"\x1f\x8b\x08\x00" + os.urandom(4), b"plain"])
def test_binary_content_is_named_by_its_length(request: pytest.FixtureRequest, raw: bytes):
    assert request.node.name.endswith(f"[raw of {len(raw)} bytes]" if raw != b"plain" else "[plain]")
