"""What a log told, in a form that tests can compare: readings, notices and facts by second."""

import math
from collections.abc import Iterable
from typing import Any

from gpuwatch.sources.logs import LogRead, read_log

YEAR_2025 = 1_735_689_600.0
"""2025-01-01T00:00:00Z."""


def read(*lines: str, start_at: float | None = YEAR_2025) -> LogRead:
    return read_log([line.encode() + b"\n" for line in lines], "e", start_at)


def rows(found: LogRead, rank: int = 0) -> list[dict[str, float]]:
    """Every reading of a rank, with its time under `at`; what is not known is left out."""
    out: list[dict[str, float]] = []
    for _, batches in found.calls:
        for batch in batches:
            for frame in batch.frames:
                if frame.subject.rank == rank:
                    for at, values in zip(frame.at.tolist(), frame.values.tolist(), strict=True):
                        known = {n: v for n, v in zip(frame.names, values, strict=True) if not math.isnan(v)}
                        out.append({"at": at, **known})
    return out


def last(found: LogRead, rank: int = 0) -> dict[str, float]:
    return rows(found, rank)[-1]


def only(found: LogRead, names: Iterable[str], rank: int = 0) -> dict[str, float]:
    """The named readings of the last row."""
    row = last(found, rank)
    return {name: row[name] for name in names if name in row}


def notices(found: LogRead) -> list[dict[str, str]]:
    return [event.detail for _, batches in found.calls for b in batches for event in b.events if event.what == "notice"]


def kinds(found: LogRead) -> list[str]:
    return [notice["kind"] for notice in notices(found)]


def facts(found: LogRead) -> dict[str, str]:
    labels: dict[str, str] = {}
    for _, batches in found.calls:
        for batch in batches:
            for info in batch.info:
                labels.update(info.labels)
    return labels


def count(found: LogRead, name: str) -> dict[str, Any]:
    """The last histogram of a name."""
    seen = [h for _, batches in found.calls for b in batches for h in b.histograms if h.name == name]
    return {"count": seen[-1].count, "sum": round(seen[-1].sum, 6)} if seen else {}


def v1(
    second: int, prompt: float, generation: float, running: int, waiting: int, kv: float, engine: str = "Engine 000"
) -> str:
    """A stats line of vLLM V1 at so many seconds after one o'clock."""
    clock = f"{1 + second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
    return (
        f"(APIServer pid=1) INFO 07-28 {clock} [loggers.py:118] {engine}: Avg prompt throughput: {prompt:.1f} tokens/s, "
        f"Avg generation throughput: {generation:.1f} tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, "
        f"GPU KV cache usage: {kv:.1f}%, Prefix cache hit rate: 12.5%"
    )
