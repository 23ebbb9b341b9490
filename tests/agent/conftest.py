"""A real world to record: a short incident of the bundled engine on a modelled device, played once a session."""

import subprocess
import sys
from pathlib import Path

import pytest

from gpuwatch.recording.quantize import quantized
from gpuwatch.sources.files.capture import calls, capture_lines, read_capture

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """The capture of two minutes in which an incident opens (after 61 s) and is resolved (after 91 s)."""
    path = tmp_path_factory.mktemp("world") / "hang.jsonl"
    scenario = str(Path(__file__).with_name("hang_120_s.toml"))
    command = [
        sys.executable,
        "-m",
        "engine_shim",
        "simulate",
        scenario,
        "--device",
        "h100",
        "--out",
        str(path),
    ]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    return path


@pytest.fixture(scope="session")
def world_calls(world):
    """Its pipeline calls, as a recorder would hand them on."""
    capture = read_capture(capture_lines(str(world)), str(world))
    return [quantized(now, batches) for now, batches in calls(capture)]


@pytest.fixture
def anyio_backend():
    """The agent runs on asyncio."""
    return "asyncio"
