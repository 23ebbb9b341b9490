"""Three dumps of a process, half a second apart, and what of each thread's stack did not move.

One dump that does not stop its target may be torn; what three of them agree on is real. A thread whose innermost frames
are the same each time waits there, or computes there: `active` and `owns_gil` tell which.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from .spy import SpyError, run

DUMPS = 3
GAP_S = 0.5
TRIES = 3
"""A target that is not stopped may change under the reader's hands: the dump fails, and the next one mostly does not."""
LIMIT_S = 10.0
MOST_THREADS = 256
MOST_FRAMES = 64
_NAME_CHARS = 200

Spy = Callable[[list[str], float], Awaitable[bytes]]


class Frame(msgspec.Struct, frozen=True):
    """Where a thread stands: function, shortened file name, line (0: native code without one)."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})" if self.line else f"{self.function} ({self.file})"


class Thread(msgspec.Struct, frozen=True):
    """One thread over all dumps. `stuck`: frames that every dump agrees on, outermost first.

    `innermost`: the frame in which it was found each time. `active_ratio`, `gil_ratio`: share of the dumps in which it ran,
    or held the interpreter's lock.
    """

    name: str
    os_thread_id: int
    stuck: tuple[Frame, ...]
    innermost: tuple[Frame | None, ...]
    active_ratio: float
    gil_ratio: float

    @property
    def moves(self) -> bool:
        """Whether it was found in different places."""
        return len(set(self.innermost)) > 1


class StackLook(msgspec.Struct, frozen=True):
    """What `look` found of one process, or why it found nothing (`unavailable`)."""

    pid: int
    dumps: int
    threads: tuple[Thread, ...] = ()
    cut: int = 0  # threads and frames beyond the bounds
    unavailable: str = ""

    def text(self) -> str:
        """For people: threads that hold the lock or run first, the innermost frame at the top."""
        if self.unavailable:
            return f"stacks of process {self.pid}: unavailable: {self.unavailable}\n"
        lines = [f"process {self.pid}, {self.dumps} dumps"]
        for thread in self.threads:
            what = f"{thread.active_ratio:.0%} active, {thread.gil_ratio:.0%} with the interpreter's lock"
            lines += [
                "",
                f"thread {thread.name or thread.os_thread_id}: {what}, {'moves' if thread.moves else 'stands'}",
            ]
            if thread.moves:
                lines += [f"    now and then in {frame}" for frame in dict.fromkeys(filter(None, thread.innermost))]
            lines += [f"    {frame}" for frame in reversed(thread.stuck)]
        if self.cut:
            lines.append(f"\n{self.cut} threads or frames more")
        return "\n".join(lines) + "\n"


async def look(
    pid: int,
    *,
    dumps: int = DUMPS,
    gap_s: float = GAP_S,
    blocking: bool = False,
    native: bool = False,
    spy: Spy = run,
    pause: Callable[[float], Awaitable[Any]] = asyncio.sleep,
) -> StackLook:
    """Dump `pid`; never raises for what the process or the system refuses: `unavailable` says it.

    Not `blocking` costs the target nothing and may tear a stack; `native` shows C frames too and has to stop the target
    (80 ms and more in a process with many threads).
    """
    arguments = ["dump", "--pid", str(pid), "--json"]
    arguments += ["--native"] if native else [] if blocking else ["--nonblocking"]
    seen: list[list[_Said]] = []
    problem = ""
    for turn in range(TRIES * dumps):
        if len(seen) == dumps:
            break
        if turn:
            await pause(gap_s)
        try:
            seen.append(msgspec.json.decode(await spy(arguments, LIMIT_S), type=list[_Said]))
        except (SpyError, OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            problem = str(error)[:300]
    if not seen:
        return StackLook(pid, 0, unavailable=problem or "no dump was asked for")
    return _compare(pid, seen)


class _SaidFrame(msgspec.Struct):
    """A frame as py-spy tells it; locals are not even decoded."""

    name: str = ""
    short_filename: str | None = None
    filename: str = ""
    line: int = 0


class _Said(msgspec.Struct):
    """A thread as py-spy tells it; frames are innermost first."""

    thread_id: int = 0
    thread_name: str | None = None
    os_thread_id: int | None = None
    active: bool = False
    owns_gil: bool = False
    frames: list[_SaidFrame] = []


def _compare(pid: int, seen: list[list[_Said]]) -> StackLook:
    newest = {thread.thread_id: thread for thread in seen[-1]}
    cut = max(0, len(newest) - MOST_THREADS)
    threads: list[Thread] = []
    for key, last in list(newest.items())[:MOST_THREADS]:
        views = [thread for dump in seen for thread in dump if thread.thread_id == key]
        stacks = [[_frame(f) for f in reversed(view.frames)] for view in views]
        stuck: list[Frame] = []
        for level in zip(*stacks, strict=False):
            if len(set(level)) > 1:
                break
            stuck.append(level[0])
        cut += max(0, len(stuck) - MOST_FRAMES)
        threads.append(
            Thread(
                (last.thread_name or "")[:_NAME_CHARS], last.os_thread_id or 0, tuple(stuck[-MOST_FRAMES:]),
                tuple(stack[-1] if stack else None for stack in stacks),
                sum(view.active for view in views) / len(seen), sum(view.owns_gil for view in views) / len(seen),
            )
        )  # fmt: skip
    threads.sort(key=lambda t: (-t.gil_ratio, -t.active_ratio, t.name, t.os_thread_id))
    return StackLook(pid, len(seen), tuple(threads), cut)


def _frame(said: _SaidFrame) -> Frame:
    return Frame(said.name[:_NAME_CHARS], (said.short_filename or said.filename)[-_NAME_CHARS:], said.line)
