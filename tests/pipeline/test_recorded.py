"""Recorded worlds of the bundled engine: the same calls give the same verdict, through a snapshot and in any order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gpuwatch.incidents.verdict import to_json
from gpuwatch.memory.snapshot import SnapshotError
from gpuwatch.model import Batch, Tick
from gpuwatch.pipeline import Pipeline
from gpuwatch.recording.quantize import quantized
from gpuwatch.sources.files.capture import calls, capture_lines, read_capture

ROOT = Path(__file__).parents[2]
Calls = list[tuple[float, tuple[Batch, ...]]]


def simulated(folder: Path, scenario: str, seconds: int, telemetry: str) -> Calls:
    """The first seconds of a scenario on a modelled H100, as pipeline calls."""
    path = folder / f"{scenario}.jsonl"
    command = [sys.executable, "-m", "engine_shim", "simulate", scenario, "--device", "h100", "--seed", "1"]
    command += ["--duration", str(seconds), "--telemetry", telemetry, "--out", str(path)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    return [quantized(*call) for call in calls(read_capture(capture_lines(str(path)), str(path)))]


@pytest.fixture(scope="module")
def blocked(tmp_path_factory) -> Calls:
    """A blocked head: an incident opens at about 119 s and is over before 170 s; everything is shown."""
    return simulated(tmp_path_factory.mktemp("blocked"), "head_of_line_blocking", 170, "full")


@pytest.fixture(scope="module")
def hung(tmp_path_factory) -> Calls:
    """A hung engine behind a page that answers."""
    return simulated(tmp_path_factory.mktemp("hung"), "engine_hang", 170, "vllm-defaults")


def play(pipeline: Pipeline, some: Calls) -> list[bytes]:
    """What each call says, as bytes that differ where anything does."""
    return [told(pipeline.step(now, batches)) for now, batches in some]


def told(tick: Tick) -> bytes:
    return msgspec.json.encode(tick)


def test_a_blocked_head_is_told(blocked):
    pipeline = Pipeline()
    play(pipeline, blocked)
    (incident,) = pipeline.verdict().incidents
    assert (incident.rule, incident.status) == ("head_of_line_blocking", "resolved")
    assert incident.subject["model"] == "7b"
    assert incident.subject["gpu"].startswith("GPU-")


def test_a_hang_is_told_from_a_default_page(hung):
    pipeline = Pipeline()
    play(pipeline, hung)
    assert [i.rule for i in pipeline.verdict().incidents] == ["engine_hang"]
    assert pipeline.verdict().sources, "and the verdict names who told it"


def test_the_same_calls_give_the_same_bytes(blocked):
    first, second = Pipeline(), Pipeline()
    assert play(first, blocked) == play(second, blocked)
    assert to_json(first.verdict()) == to_json(second.verdict())
    assert first.snapshot() == second.snapshot()


@pytest.mark.parametrize("cut", [1, 118, 122])
def test_a_restored_pipeline_goes_on_exactly_as_it_would_have(blocked, cut):
    """Before, at and after the opening of an incident."""
    whole = Pipeline()
    play(whole, blocked[:cut])
    restored = Pipeline.restore(None, whole.snapshot())
    assert restored.snapshot() == whole.snapshot()
    assert play(restored, blocked[cut:]) == play(whole, blocked[cut:])
    assert to_json(restored.verdict()) == to_json(whole.verdict())


def test_a_restored_pipeline_knows_its_verdict_at_once(blocked):
    whole = Pipeline()
    play(whole, blocked[:130])
    restored = Pipeline.restore(None, whole.snapshot())
    assert [i.id for i in restored.verdict().incidents] == [i.id for i in whole.verdict().incidents]
    assert restored.subjects() == whole.subjects()


@pytest.mark.parametrize("name", ["blocked", "hung"])
def test_the_order_of_batches_within_a_call_changes_nothing(name, request):
    """Sources answer in any order; those of one source stay in theirs."""
    some = request.getfixturevalue(name)
    backwards = [(now, by_source_backwards(batches)) for now, batches in some]
    assert backwards != some
    straight, turned = Pipeline(), Pipeline()
    play(straight, some)
    play(turned, backwards)
    verdicts = [msgspec.json.decode(to_json(p.verdict())) for p in (straight, turned)]
    for verdict in verdicts:
        verdict["sources"].sort(key=lambda s: (s["name"], s["role"], s["subject"]))
    assert verdicts[0] == verdicts[1]


def by_source_backwards(batches: tuple[Batch, ...]) -> tuple[Batch, ...]:
    names = dict.fromkeys(b.source for b in batches)
    return tuple(b for name in reversed(names) for b in batches if b.source == name)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_snapshot_that_was_cut_is_refused(blocked, share):
    data = snapshot_of(blocked)
    with pytest.raises(SnapshotError):
        Pipeline.restore(None, data[: max(1, int(share * len(data)))])


def test_a_snapshot_with_flipped_bytes_is_refused_or_read_but_never_anything_else(blocked):
    """Damage that msgpack cannot see may change a number; nothing else may happen."""
    data = snapshot_of(blocked)
    for k in range(0, len(data), len(data) // 25):
        damaged = bytes([*data[:k], data[k] ^ 0xFF, *data[k + 1 :]])
        try:
            Pipeline.restore(None, damaged)
        except SnapshotError:
            continue


def snapshot_of(some: Calls) -> bytes:
    pipeline = Pipeline()
    play(pipeline, some[:3])
    return pipeline.snapshot()
