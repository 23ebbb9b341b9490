"""Recorded demand: a file of real requests, when each came and how long its prompt and its answer were.

A CSV file, gzipped or not, one request a line in order of arrival, under a header that has the columns of the Azure LLM
inference traces (TIMESTAMP, ContextTokens, GeneratedTokens) or at_s, prompt_tokens, output_tokens. Times are seconds or
ISO dates and count from the first request. There is no text in it. Everything wrong is a TraceError with file and line.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import IO

import numpy as np

MOST_REQUESTS = 2_000_000
LONGEST_LINE = 1000
LONGEST_TOKENS = 10_000_000
COLUMNS = (("timestamp", "contexttokens", "generatedtokens"), ("at_s", "prompt_tokens", "output_tokens"))

_HERE = Path(__file__).resolve().parents[2]
# Beside a checkout's scenarios, and where the wheel puts them.
FOLDERS = (_HERE / "tests" / "scenarios" / "traces", _HERE / "gpuwatch" / "scenarios" / "traces")


class TraceError(ValueError):
    """A trace that cannot be played; the message names the file and the line."""


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in order of arrival: seconds since the first one, and tokens (≥ 1)."""

    at_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray


@dataclass(frozen=True, slots=True)
class Replay:
    """How a stream plays a trace: from which of its seconds on, how many times as fast, and with which of its lengths."""

    trace: Trace
    from_s: float = 0.0
    speed: float = 1.0
    own_prompts: bool = False  # the stream's own distribution instead of what was recorded
    own_outputs: bool = False

    @property
    def first(self) -> int:
        """The first request that is played."""
        return int(np.searchsorted(self.trace.at_s, self.from_s))

    def times(self, start_s: float) -> np.ndarray:
        """Arrival times, where the part that is played begins at `start_s`."""
        at_s: np.ndarray = start_s + (self.trace.at_s[self.first :] - self.from_s) / self.speed
        return at_s

    def lengths(self, at: int, prompts: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Prompt and output tokens of the requests from the `at`-th on: recorded, or those given where they are own."""
        trace, rows = self.trace, slice(self.first + at, self.first + at + len(prompts))
        recorded_prompts, recorded_outputs = trace.prompt_tokens[rows], trace.output_tokens[rows]
        left = len(recorded_prompts)
        return (
            prompts[:left] if self.own_prompts else recorded_prompts,
            outputs[:left] if self.own_outputs else recorded_outputs,
        )


def find_trace(name: str, folder: Path) -> Path:
    """A file by its path from `folder`, or a shipped one by its name. TraceError lists the names."""
    if name.endswith((".csv", ".csv.gz")):
        return folder / name
    for shipped in FOLDERS:
        path = shipped / f"{name}.csv.gz"
        if path.is_file():
            return path
    known = sorted({file.name.removesuffix(".csv.gz") for shipped in FOLDERS for file in shipped.glob("*.csv.gz")})
    raise TraceError(f"no trace {name!r}; give a .csv or .csv.gz beside the scenario, or one of: {', '.join(known)}")


def read_trace(path: Path) -> Trace:
    """The whole file; read once and kept while it does not change."""
    try:
        return _read(path, path.stat().st_mtime_ns)
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise TraceError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path}: is not UTF-8 text") from None


@lru_cache(maxsize=4)
def _read(path: Path, changed_ns: int) -> Trace:
    with _opened(path) as file:
        lines = _lines(file, path)
        header = [name.strip().lower() for name in next(csv.reader(lines), [])]
        columns = next(([header.index(name) for name in names] for names in COLUMNS if set(names) <= {*header}), None)
        if columns is None:
            forms = " or ".join(", ".join(names) for names in COLUMNS)
            raise TraceError(f"{path}:1: the header must have the columns {forms}")
        rows: list[tuple[float, int, int]] = []
        for number, row in enumerate(csv.reader(lines), 2):
            if len(rows) >= MOST_REQUESTS:
                raise TraceError(f"{path}:{number}: more than {MOST_REQUESTS:,} requests; cut the file")
            rows.append(_request(row, columns, f"{path}:{number}"))
            if len(rows) > 1 and rows[-1][0] < rows[-2][0]:
                raise TraceError(f"{path}:{number}: comes before the line above; sort the file by arrival")
    if not rows:
        raise TraceError(f"{path}: holds no request")
    at_s, prompts, outputs = (np.array(column) for column in zip(*rows, strict=True))
    return Trace(at_s - at_s[0], prompts, outputs)


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path, "rb"), encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")


def _lines(file: IO[str], path: Path) -> Iterator[str]:
    """Lines that are not too long, whatever the file is."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise TraceError(f"{path}:{number}: a line is longer than {LONGEST_LINE} characters")
        yield line


def _request(row: list[str], columns: list[int], where: str) -> tuple[float, int, int]:
    if len(row) <= max(columns):
        raise TraceError(f"{where}: has {len(row)} columns, fewer than the header")
    at, *lengths = (row[column].strip() for column in columns)
    prompt, output = (int(text) if text.isdecimal() else 0 for text in lengths)
    if not (1 <= prompt <= LONGEST_TOKENS and 1 <= output <= LONGEST_TOKENS):
        raise TraceError(f"{where}: lengths are whole numbers from 1 to {LONGEST_TOKENS:,}, got {', '.join(lengths)}")
    return _seconds(at, where), prompt, output


def _seconds(text: str, where: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        try:
            date = datetime.fromisoformat(text)
            seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
        except ValueError:
            raise TraceError(f"{where}: {text[:40]!r} is neither seconds nor an ISO date") from None
    if not abs(seconds) < 1e12:
        raise TraceError(f"{where}: {text[:40]!r} is no time")
    return seconds
