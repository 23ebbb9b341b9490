"""A short sampling of a process into a file that https://www.speedscope.app shows. On demand only."""

from __future__ import annotations

import asyncio
from pathlib import Path

from .spy import SpyError, run

SLACK_S = 15.0
MOST_SECONDS = 60


async def record(pid: int, seconds: int, out: str | Path, *, hertz: int = 50, native: bool = False) -> int:
    """Sample `pid` for some seconds into `out`; the size of the file in bytes. Raises SpyError.

    Without `native` the target is not stopped. A process with hundreds of threads is read in milliseconds each time:
    50 Hz keep that below a few percent.
    """
    if not 1 <= seconds <= MOST_SECONDS:
        raise SpyError(f"between 1 and {MOST_SECONDS} seconds, not {seconds}")
    part = Path(f"{out}.part")
    if not part.parent.is_dir():
        raise SpyError(f"{out}: no such folder")
    arguments = [
        "record",
        "--pid",
        str(pid),
        "--duration",
        str(seconds),
        "--rate",
        str(hertz),
        "--format",
        "speedscope",
    ]
    arguments += ["--output", str(part), "--native" if native else "--nonblocking"]
    try:
        await run(arguments, seconds + SLACK_S)
        return await asyncio.to_thread(_keep, part, Path(out))
    except OSError as error:
        raise SpyError(f"{out}: {error.strerror or error}") from error
    finally:
        await asyncio.to_thread(part.unlink, missing_ok=True)


def _keep(part: Path, out: Path) -> int:
    part.replace(out)
    return out.stat().st_size
