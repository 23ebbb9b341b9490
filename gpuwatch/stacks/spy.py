"""The program py-spy: found, started with a deadline, its answer bounded. It stops with us and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

MOST_BYTES = 8 * 1024 * 1024
_ERROR_CHARS = 300


class SpyError(Exception):
    """py-spy could not look; the message says why, and what would allow it."""


def program() -> str:
    """The path of py-spy: beside our interpreter, or in PATH. Raises SpyError."""
    beside = Path(sys.executable).parent / "py-spy"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")
    if not found:
        raise SpyError("py-spy is not installed: pip install gpuwatch[stacks]")
    return found


async def run(arguments: list[str], limit_s: float) -> bytes:
    """What `py-spy ARGUMENTS` prints. Raises SpyError: not there, not allowed, too slow, too much."""
    process = await asyncio.create_subprocess_exec(
        program(), *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, limit=MOST_BYTES,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(limit_s):
            said, complained = await asyncio.gather(_all_of(process.stdout, MOST_BYTES), _all_of(process.stderr, 65536))
            if len(said) > MOST_BYTES:
                raise SpyError(f"its answer is longer than {MOST_BYTES} bytes")
            code = await process.wait()
    except TimeoutError:
        raise SpyError(f"no answer in {limit_s:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code:
        raise SpyError(_reason(complained.decode("utf-8", "replace")))
    return said


async def _all_of(stream: asyncio.StreamReader, most: int) -> bytes:
    """Everything up to its end, or one byte more than `most`."""
    try:
        return await stream.readexactly(most + 1)
    except asyncio.IncompleteReadError as ended:
        return ended.partial


def _reason(said: str) -> str:
    """Its complaint on one line, with the cure where we know it."""
    words = said.split("Stack backtrace", maxsplit=1)[0].removeprefix("Error:")
    line = " ".join("".join(c if c.isprintable() else " " for c in words).split())[:_ERROR_CHARS]
    if "ermission" in said or "EPERM" in said:
        return f"{line} (needs the same user, a shared process namespace and CAP_SYS_PTRACE)"
    return line or "it failed and said nothing"
