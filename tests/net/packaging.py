"""The same calls in every packaging: live steps and their conclusion, a capture, a folder of pages, a file, a capsule.

`packaging/INPUT/WAY`: INPUT is a scenario with its sources (`engine_hang-defaults`) or a public case; the live agent's
verdict is what every other way must give. Only the verdict is compared: transitions belong to what runs.
"""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.net.inputs import file_of, stream_of
from tests.net.outcome import Outcome, difference, outcome_of
from tests.net.product import (
    Call,
    Played,
    calls_of_capture,
    calls_of_file,
    diagnosed,
    played,
    write_capsule,
)

SIMULATED = (
    "engine_hang",
    "engine_crash",
    "admission_deferred",
    "unschedulable_request",
    "healthy_idle_spin",
)
WITH_EVERYTHING = ("engine_crash", "unschedulable_request")
"""Those of them that are handed over in full, too."""
CASES = (
    "05-pool-held-for-hours",
    "11-saturated-then-still",
    "35-batch-loop-stuck",
    "38-shift-without-end",
    "45-ecc",
    "46-last-code",
)
ENGINE = "shim"


class Live(NamedTuple):
    """An input as the live agent met it, and what its concluded verdict is. `stream` is the capture of a scenario."""

    given: tuple[Call, ...]
    ran: Played
    outcome: Outcome
    stream: bytes = b""
    file: Path | None = None

    @property
    def begin(self) -> float:
        """The time of the first call."""
        return self.given[0][0]


def all_keys() -> tuple[str, ...]:
    """Every input with every way to hand it over."""
    found = [f"packaging/{stem}-full/{way}" for stem in WITH_EVERYTHING for way in ("capture", "capsule")]
    found += [f"packaging/{stem}-defaults/{way}" for stem in SIMULATED for way in ("capture", "folder", "capsule")]
    found += [f"packaging/{stem}/{way}" for stem in CASES for way in ("file", "folder", "capsule")]
    return tuple(found)


def compare(key: str, folder: Path) -> tuple[str, str] | None:
    """How the verdict of one packaging differs from the live one; None where it does not. Files go to `folder`."""
    _, name, way = key.split("/")
    live = met(name)
    sources, engine = _packed(live, way, folder)
    found = outcome_of(diagnosed(sources, engine), (), live.begin)
    return difference(live.outcome, found, transitions=False)


@cache
def met(name: str) -> Live:
    """The input as the live agent meets it."""
    if name in CASES:
        file = file_of(f"cases/{name}")
        return _live(tuple(calls_of_file(file)), file=file)
    stem, _, sources = name.rpartition("-")
    stream = stream_of(stem, "h100", "1", sources)
    return _live(tuple(calls_of_capture(stream)), stream=stream)


def _live(given: tuple[Call, ...], stream: bytes = b"", file: Path | None = None) -> Live:
    ran = played(given)
    return Live(given, ran, outcome_of(ran.concluded, (), given[0][0]), stream, file)


def _packed(live: Live, way: str, folder: Path) -> tuple[list[Path], str]:
    """The sources to diagnose, and the engine's name where they do not say it."""
    if way == "capsule":
        return [write_capsule(folder / "run.capsule", live.given)], ""
    if way == "file":
        assert live.file is not None
        return [live.file], ""
    if way == "capture":
        (folder / "run.capture").write_bytes(live.stream)
        return [folder / "run.capture"], ""
    if live.file is not None:
        shutil.copy2(live.file, folder)  # with its time: it dates what says no time itself
        return [folder], ""
    write_pages(live.stream, folder)
    return [folder], ENGINE


def write_pages(stream: bytes, folder: Path) -> None:
    """The pages of a capture as a loop around curl leaves them: one file each, and their times in index.csv."""
    rows = ["n,t_wall,status,error"]
    for line in stream.splitlines():
        record = json.loads(line)
        if record.get("src") == "page":
            (folder / f"page_{len(rows)}.prom").write_text(record["body"])
            rows.append(f"{len(rows)},{record['t']!r},200,")
        elif record.get("src") == "error":
            rows.append(f"{len(rows)},{record['t']!r},0,{record['error']}")
    (folder / "index.csv").write_text("\n".join(rows) + "\n")
