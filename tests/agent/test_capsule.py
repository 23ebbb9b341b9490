"""A capsule gives the verdict again, to the last digit; a file that is none says what is wrong with it."""

import zlib

import msgspec
import pytest

from gpuwatch.config import Config
from gpuwatch.incidents.verdict import to_json
from gpuwatch.pipeline import Pipeline
from gpuwatch.recording.capsule import MAGIC, Capsule, CapsuleError, CapsuleWriter, replay, rule_versions
from gpuwatch.recording.framing import frame
from gpuwatch.recording.recorder import Recorder
from gpuwatch.rules import load_rules
from tests.agent.builders import START, page_batch


@pytest.fixture
def small(tmp_path):
    """A capsule of 100 calls."""
    with CapsuleWriter(tmp_path / "run.capsule", Config(), clock="virtual", meta={"seed": 1}) as writer:
        for i in range(100):
            writer.append(START + i, (page_batch(START + i),))
    return tmp_path / "run.capsule"


def test_a_whole_run_replays_to_the_same_verdict(tmp_path, world_calls):
    """Live and replayed verdicts are the same bytes, and the capsule is smaller than a tenth of a megabyte a minute."""
    live = Pipeline(Config())
    with CapsuleWriter(tmp_path / "run.capsule", Config()) as writer:
        for call in world_calls:
            writer.append(*call)
            live.step(*call)
    verdict = to_json(live.verdict())
    assert b"engine_hang" in verdict
    assert to_json(replay(Capsule.open(tmp_path / "run.capsule"))) == verdict


def test_an_incident_leaves_a_capsule_that_begins_before_it_and_replays_to_it(tmp_path, world_calls):
    """The capsule of an incident starts from a snapshot, so that baselines are warm and the verdict is the same."""
    recorder = Recorder(tmp_path, Config())
    live = Pipeline(Config())
    verdicts, found = {}, None
    for now, batches in world_calls:
        call = recorder.record(now, batches)
        tick = live.step(*call)
        recorder.noticed(now, live, tick.transitions)
        recorder.tidy(now)
        verdicts[now] = to_json(live.verdict())
        found = next((t.incident for t in tick.transitions if t.kind == "opened"), found)
    assert found is not None
    last = world_calls[-1][0]
    recorder.tidy(last + 7200)  # the longest that is waited for an end
    capsule = Capsule.open(recorder.capsule_path(found.id))
    times = [now for now, _ in capsule.calls()]
    assert capsule.snapshot
    assert times[0] < found.onset_at
    assert capsule.header.incident == found.id
    assert to_json(replay(capsule)) == verdicts[times[-1]]


def test_a_restart_goes_on_where_the_last_run_was(tmp_path, world_calls):
    """Snapshot and journal bring back the same state, whether or not the last run closed properly."""
    recorder = Recorder(tmp_path, Config())
    live = Pipeline(Config())
    for now, batches in world_calls[:100]:
        live.step(*recorder.record(now, batches))
        recorder.noticed(now, live, ())
        if int(now) % 15 == 0:
            recorder.tidy(now)
    warm = None
    for warm, call in Recorder(tmp_path, Config()).warm():
        if call is not None:
            warm.step(*call)
    assert warm is not None
    assert warm.snapshot() == live.snapshot()


def test_a_snapshot_that_cannot_be_read_costs_warmth_not_the_start(tmp_path, world_calls):
    """Damaged snapshots are counted and the last 15 minutes are replayed from cold."""
    recorder = Recorder(tmp_path, Config())
    live = Pipeline(Config())
    for now, batches in world_calls[:30]:
        live.step(*recorder.record(now, batches))
        recorder.noticed(now, live, ())
    recorder.tidy(world_calls[30][0])
    for path in (tmp_path / "snapshots").iterdir():
        path.write_bytes(b"nonsense")
    again = Recorder(tmp_path, Config())
    replayed = [call[0] for _, call in again.warm() if call is not None]
    assert replayed == [now for now, _ in world_calls[:30]]
    assert again.counts["failed_snapshots"] == 1


def test_the_header_says_what_judged(small):
    """Version, configuration, clock and the hash of every rule are in the file."""
    header = Capsule.open(small).header
    assert (header.schema, header.clock, header.meta) == (1, "virtual", {"seed": 1})
    assert header.rules == rule_versions()
    assert set(header.rules) == set(load_rules())
    assert Capsule.open(small).changed_rules() == []


def test_an_unfinished_capsule_does_not_appear_under_its_name(tmp_path):
    """Until it is whole it is `.part`; a failure removes it."""
    path = tmp_path / "run.capsule"
    writer = CapsuleWriter(path, Config())
    writer.append(START, ())
    assert [p.name for p in tmp_path.iterdir()] == ["run.capsule.part"]
    writer.__exit__(RuntimeError, RuntimeError(), None)
    assert list(tmp_path.iterdir()) == []


def broken(data, how):
    body = data[len(MAGIC) :]
    header = {"schema": 9, "gpuwatch": "9", "clock": "real", "config": {}}
    return {
        "another file": b"\x7fELF and more",
        "empty": b"",
        "cut in the header": data[:30],
        "cut in a block": data[:-200],
        "cut at the end": data[: -len(frame(b"E100"))],
        "a flipped byte": data[:-100] + bytes([data[-100] ^ 1]) + data[-99:],
        "a later schema": MAGIC + frame(b"H" + msgspec.json.encode(header)),
        "a header of another kind": MAGIC + frame(b"H[]"),
        "no header": MAGIC + frame(b"S" + zlib.compress(b"")),
        "no snapshot": MAGIC + body[: 8 + int.from_bytes(body[:4], "little")],
        "a damaged snapshot": MAGIC + body[: 8 + int.from_bytes(body[:4], "little")] + frame(b"Szzz") + frame(b"E0"),
    }[how]


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("another file", "not a gpuwatch capsule"),
        ("empty", "not a gpuwatch capsule"),
        ("cut in the header", "cut"),
        ("cut in a block", "cut"),
        ("cut at the end", "cut short after 100 calls"),
        ("a flipped byte", "checksum"),
        ("a later schema", "schema 9"),
        ("a header of another kind", "capsule"),
        ("no header", "without a header"),
        ("no snapshot", "cut short"),
        ("a damaged snapshot", "Error -3"),
    ],
)
def test_a_file_that_is_no_whole_capsule_is_refused_by_name(small, how, says):
    """The message names the file and what is wrong."""
    small.write_bytes(broken(small.read_bytes(), how))
    with pytest.raises(CapsuleError, match=says) as error:
        replay(Capsule.open(small))
    assert str(small) in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    """No traceback for a typing error."""
    with pytest.raises(CapsuleError, match=r"nix\.capsule: No such file"):
        Capsule.open(tmp_path / "nix.capsule")
