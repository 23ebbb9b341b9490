"""Stacks of a real process through the real py-spy, and of answers that py-spy might give."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.stacks import look, record
from gpuwatch.stacks.spy import SpyError, run

SCRIPT = """
import threading, sys
def held_for_ever(lock, prompt):
    lock.acquire()
def busy_loop():
    while True:
        sum(range(1000))
lock = threading.Lock()
lock.acquire()
threading.Thread(target=held_for_ever, args=(lock, "SECRET-PROMPT"), name="engine-core", daemon=True).start()
print("ready", flush=True)
busy_loop()
"""


def names(folder: Path) -> list[str]:
    """The files in a folder."""
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def victim() -> Iterator[int]:
    """A process with one thread that waits for ever and one that computes."""
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.kill()


async def no_pause(_seconds: float) -> None:
    """The dumps are apart by what a dump takes."""


@pytest.fixture
def gone() -> int:
    """A process id that was one."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


@pytest.mark.anyio
async def test_the_thread_that_waits_stands_and_the_busy_one_holds_the_lock(victim: int) -> None:
    found = await look(victim, pause=no_pause)
    if found.unavailable and "SYS_PTRACE" in found.unavailable:
        pytest.skip("this machine forbids looking into a child process")
    assert found.dumps == 3, found.unavailable
    by_name = {thread.name: thread for thread in found.threads}
    waits = by_name["engine-core"]
    assert waits.stuck[-1].function == "held_for_ever"
    assert not waits.moves
    assert waits.gil_ratio == 0
    main = by_name["MainThread"]
    assert "busy_loop" in [frame.function for frame in main.stuck]
    assert main.active_ratio == 1
    text = found.text()
    assert text.index("MainThread") < text.index("engine-core")
    assert "SECRET-PROMPT" not in text + repr(found)


@pytest.mark.anyio
async def test_a_record_is_a_speedscope_file(victim: int, tmp_path: Path) -> None:
    out = tmp_path / "profile.speedscope.json"
    try:
        size = await record(victim, 1, out)
    except SpyError as error:
        if "SYS_PTRACE" in str(error):
            pytest.skip("this machine forbids looking into a child process")
        raise
    told = json.loads(out.read_text("utf-8"))
    assert size == out.stat().st_size
    assert "busy_loop" in {frame["name"] for frame in told["shared"]["frames"]}
    assert names(tmp_path) == [out.name]


@pytest.mark.anyio
async def test_a_process_that_is_gone_is_unavailable_with_a_reason(gone: int) -> None:
    found = await look(gone, dumps=1)
    assert found.dumps == 0
    assert found.unavailable
    assert "unavailable" in found.text()


@pytest.mark.anyio
async def test_recording_refuses_a_long_time(tmp_path: Path) -> None:
    with pytest.raises(SpyError, match="between 1 and 60"):
        await record(1, 3600, tmp_path / "x")


@pytest.mark.anyio
async def test_a_complaint_is_one_line_with_its_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refused = tmp_path / "py-spy"
    refused.write_text("#!/bin/sh\nprintf 'Error: Permission denied\\nStack backtrace:\\n 0: main' >&2\nexit 1\n")
    refused.chmod(0o755)
    monkeypatch.setattr("gpuwatch.stacks.spy.program", lambda: str(refused))
    with pytest.raises(SpyError, match=r"^Permission denied \(needs .* CAP_SYS_PTRACE\)$"):
        await run([], 5.0)


@pytest.mark.anyio
async def test_a_long_answer_comes_whole_and_a_flood_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    many = tmp_path / "py-spy"
    many.write_text('#!/bin/sh\nhead -c "$1" /dev/zero\n')
    many.chmod(0o755)
    monkeypatch.setattr("gpuwatch.stacks.spy.program", lambda: str(many))
    assert len(await run(["3000000"], 20.0)) == 3_000_000
    with pytest.raises(SpyError, match="longer than"):
        await run(["20000000"], 20.0)


@pytest.mark.anyio
async def test_a_program_that_is_too_slow_is_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slow = tmp_path / "py-spy"
    slow.write_text("#!/bin/sh\nexec cat /dev/zero >/dev/null\n")
    slow.chmod(0o755)
    monkeypatch.setattr("gpuwatch.stacks.spy.program", lambda: str(slow))
    with pytest.raises(SpyError, match="no answer"):
        await run([], 0.2)


def thread(**changes: Any) -> dict[str, Any]:
    """A thread as py-spy tells it."""
    frames = [
        {"name": "wait", "filename": "/x/threading.py", "short_filename": "threading.py", "line": 320, "locals": None}
    ]
    return {
        "pid": 1, "thread_id": 7, "thread_name": "T", "os_thread_id": 9, "active": False, "owns_gil": False, "frames": frames
    } | changes  # fmt: skip


@pytest.mark.anyio
async def test_locals_are_never_asked_for_and_the_target_is_not_stopped() -> None:
    asked: list[list[str]] = []

    async def spy(arguments: list[str], _limit_s: float) -> bytes:
        asked.append(arguments)
        return json.dumps([thread()]).encode()

    await look(5, spy=spy, pause=no_pause)
    assert len(asked) == 3  # none failed
    for arguments in asked:
        assert "--nonblocking" in arguments
        assert not any(word.startswith("-l") or word == "--locals" for word in arguments)
    await look(5, native=True, spy=spy, pause=no_pause)
    assert "--nonblocking" not in asked[-1]  # py-spy refuses both together


@pytest.mark.anyio
async def test_torn_dumps_leave_what_they_agree_on() -> None:
    outer = {"name": "run", "filename": "core.py", "short_filename": "core.py", "line": 10}
    inner = [{"name": name, "filename": "s.py", "short_filename": None, "line": 1} for name in ("a", "b", "c")]
    answers = iter([[thread(frames=[frame, outer], active=i == 0)] for i, frame in enumerate(inner)])

    async def spy(_arguments: list[str], _limit_s: float) -> bytes:
        return json.dumps(next(answers)).encode()

    found = await look(5, spy=spy, pause=no_pause)
    (only,) = found.threads
    assert [frame.function for frame in only.stuck] == ["run"]
    assert [frame.function for frame in only.innermost if frame] == ["a", "b", "c"]
    assert only.moves
    assert only.active_ratio == pytest.approx(1 / 3)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "answer", [b"", b"[", b"{}", b'[{"frames": 3}]', b"\xff\xfe", b'[{"frames": [{"line": "x"}]}]']
)
async def test_an_answer_that_is_no_dump_is_unavailable(answer: bytes) -> None:
    async def spy(_arguments: list[str], _limit_s: float) -> bytes:
        return answer

    found = await look(5, spy=spy, pause=no_pause)
    assert found.dumps == 0
    assert found.unavailable


@pytest.mark.anyio
async def test_a_flood_of_threads_and_frames_is_cut_and_counted() -> None:
    deep = [{"name": "f" * 10_000, "filename": "d.py", "short_filename": "d.py", "line": i} for i in range(1000)]
    flood = json.dumps([thread(thread_id=i, frames=deep if i == 0 else []) for i in range(1000)]).encode()

    async def spy(_arguments: list[str], _limit_s: float) -> bytes:
        return flood

    found = await look(5, spy=spy, pause=no_pause)
    assert len(found.threads) == 256
    assert found.cut == (1000 - 256) + (1000 - 64)
    assert all(len(frame.function) <= 200 for t in found.threads for frame in t.stuck)


@pytest.mark.anyio
async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """py-spy would say "No such file or directory" and not which."""
    out = tmp_path / "nowhere" / "x.json"
    with pytest.raises(SpyError, match=r"nowhere/x\.json: no such folder"):
        await record(1, 1, out)
