"""What the flight recorder writes for each sample, step and span, and how long a tick of it takes."""

from __future__ import annotations

import sqlite3
import tempfile
from itertools import count
from pathlib import Path

import numpy as np

from gpuwatch.model import Batch, Frame, Subject
from tests.bench.calls import calls
from tests.bench.measure import by_turns
from tests.bench.row import Row

SIGNALS, HERTZ, SECONDS = 100, 10, 60
START = 1_764_000_000.0
SUBJECT = Subject(engine="bench")


def ticks() -> list[tuple[float, tuple[Batch, ...]]]:
    """A minute of 100 signals at 10 Hz as the lanes bring them: 40 counters, 20 constants, 20 small counts, 20 ratios."""
    rng = np.random.default_rng(7)
    n = SECONDS * HERTZ
    counters = np.cumsum(rng.poisson(3.0, (n, 40)), axis=0) + 1e6
    constants = np.tile(rng.integers(1, 1000, 20).astype(float), (n, 1))
    small = np.clip(np.cumsum(rng.integers(-1, 2, (n, 20)), axis=0) + 30, 0, None)
    ratios = np.clip(0.6 + np.cumsum(rng.normal(0, 0.002, (n, 20)), axis=0), 0, 1)
    values = np.hstack([counters, constants, small, ratios])
    names = tuple(f"signal_{i}" for i in range(SIGNALS))
    out = []
    for i in range(n):
        at = START + i / HERTZ
        frame = Frame(SUBJECT, "page", names, np.array([at]), values[i : i + 1])
        out.append((at, (Batch("page", "engine", SUBJECT, at, frames=(frame,)),)))
    return out


def per_sample() -> Row:
    """Bytes a sample after packing, against one SQLite row for each."""
    from gpuwatch.recording.codec import Encoder, pack_block
    from gpuwatch.recording.quantize import quantized

    minute = [quantized(*tick) for tick in ticks()]
    encoder = Encoder()
    packed = len(pack_block([encoder.encode(*tick) for tick in minute]))
    samples = SIGNALS * len(minute)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.db"
        database = sqlite3.connect(path)
        database.execute("create table sample (at real, signal integer, value real)")
        for at, (batch,) in minute:
            row = batch.frames[0].values[0]
            database.executemany(
                "insert into sample values (?, ?, ?)", ((at, i, v) for i, v in enumerate(row.tolist()))
            )
        database.commit()
        database.close()
        rows = path.stat().st_size
    return Row("B", 2.0, packed / samples, rows / samples, note="naive is SQLite, one row each")


def per_tick() -> Row:
    """Rounding and appending one tick of 100 signals to the journal on disk."""
    from gpuwatch.recording.journal import Journal
    from gpuwatch.recording.quantize import quantized

    minute, turn = ticks(), count()
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "journal")
        database = sqlite3.connect(Path(folder) / "rows.db", isolation_level=None)
        database.executescript("pragma journal_mode=wal; create table sample (at real, signal integer, value real);")

        def ours() -> None:
            i = next(turn)
            _, batches = minute[i % len(minute)]
            journal.append(*quantized(START + i / HERTZ, batches))

        def naive() -> None:
            _, (batch,) = minute[0]
            database.execute("begin")
            database.executemany(
                "insert into sample values (?, ?, ?)",
                ((START, i, v) for i, v in enumerate(batch.frames[0].values[0].tolist())),
            )
            database.execute("commit")

        now, before = by_turns(ours, naive)
        journal.close()
        database.close()
    return Row("µs", 20, now * 1e6, before * 1e6,
        note="rounding, encoding, one write(2); kill -9 loses nothing that was written; naive is a SQLite transaction",
    )  # fmt: skip


def per_step() -> Row:
    """Bytes of a scheduler step, from a simulated run."""
    size, number = _packed("frames", "steps")
    return Row("B", 24, size / number, note=f"{number} steps of a simulated run, packed alone")


def per_span() -> Row:
    """Bytes of a stage span, from a simulated run."""
    size, number = _packed("spans", "spans")
    return Row("B", 40, size / number, note=f"{number} spans of a simulated run, packed alone")


def _packed(kind: str, role: str) -> tuple[int, int]:
    """Packed size of one kind of item in the founding case, in blocks of a minute, and how many there were."""
    from gpuwatch.recording.codec import Encoder, pack_block
    from gpuwatch.recording.quantize import quantized

    size = number = 0
    run = calls("batch_thrashing")
    for first in range(0, len(run), 60):
        encoder, payloads = Encoder(), []
        for now, batches in run[first : first + 60]:
            mine = [batch for batch in batches if batch.role == role]
            bare = [Batch(b.source, b.role, b.subject, b.received_at, **{kind: getattr(b, kind)}) for b in mine]
            number += sum(len(item.at if kind == "frames" else item.start) for b in bare for item in getattr(b, kind))
            payloads.append(encoder.encode(*quantized(now, bare)))
        size += len(pack_block(payloads))
    return size, max(1, number)
