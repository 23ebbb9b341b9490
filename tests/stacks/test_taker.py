"""When the agent takes stacks by itself: once an incident, seldom, only where a stack can explain something."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gpuwatch.model import Incident, Subject, Transition
from gpuwatch.stacks import Frame, StackLook, StackTaker, Thread
from tests.report.sample import incident as an_incident

LOOK = StackLook(41, 3, (Thread("engine", 1, (Frame("wait", "t.py", 3),), (None,), 0.0, 0.0),))


def names(folder: Path) -> list[str]:
    """The files in a folder."""
    return sorted(path.name for path in folder.iterdir())


def opened(id: str, family: str = "engine_down", engine: str = "e") -> Transition:
    """A new incident of a family."""
    incident: Incident = msgspec.structs.replace(
        an_incident(), id=id, family=family, subject={"engine": engine, "rank": 0, "gpu": "", "model": ""}
    )
    return Transition("opened", 100.0, incident)


def taker(folder: Path, seen: list[int], **changes: object) -> StackTaker:
    """One whose looks are noted."""

    async def take(pid: int) -> StackLook:
        seen.append(pid)
        return LOOK

    return StackTaker(folder, lambda: {Subject(engine="e"): 41}, take=take, **changes)  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_an_incident_is_looked_at_once_and_kept(tmp_path: Path) -> None:
    seen: list[int] = []
    one = taker(tmp_path / "stacks", seen)
    one.hear(opened("a1"))
    one.hear(opened("a1"))
    assert one.due(100.0)
    await one.pump(100.0)
    assert not one.due(101.0)
    assert seen == [41]
    assert msgspec.json.decode((tmp_path / "stacks" / "a1.json").read_bytes(), type=StackLook) == LOOK
    assert one.counts == {"taken": 1}


@pytest.mark.anyio
async def test_looks_are_a_minute_apart_and_the_queue_is_bounded(tmp_path: Path) -> None:
    seen: list[int] = []
    one = taker(tmp_path, seen)
    for i in range(20):
        one.hear(opened(f"a{i}"))
    assert one.counts["skipped"] == 12
    await one.pump(100.0)
    assert not one.due(159.0)
    assert one.due(160.0)


def test_a_queue_is_not_explained_by_a_stack(tmp_path: Path) -> None:
    one = taker(tmp_path, [])
    one.hear(opened("a1", "demand"))
    one.hear(Transition("resolved", 1.0, opened("a2").incident))
    assert not one.due(100.0)


@pytest.mark.anyio
async def test_an_unknown_process_is_said_with_the_cure(tmp_path: Path) -> None:
    seen: list[int] = []
    one = taker(tmp_path, seen)
    one.hear(opened("a1", engine="other"))
    await one.pump(100.0)
    assert seen == []
    assert one.counts == {"unavailable": 1}
    assert "engines.pid" in one.last_error


@pytest.mark.anyio
async def test_a_folder_that_cannot_be_written_is_counted(tmp_path: Path) -> None:
    (tmp_path / "stacks").write_text("a file")
    one = taker(tmp_path / "stacks", [])
    one.hear(opened("a1"))
    await one.pump(100.0)
    assert one.counts["failed"] == 1
    assert str(tmp_path) in one.last_error


@pytest.mark.anyio
async def test_the_oldest_looks_go(tmp_path: Path) -> None:
    one = taker(tmp_path, [], keep=2)
    for i in range(4):
        one.hear(opened(f"a{i}"))
        await one.pump(100.0 + 60 * i)
    assert names(tmp_path) == ["a2.json", "a3.json"]
