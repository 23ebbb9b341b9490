"""`python -m tests.bench [WORD …]`: every row of the budgets, measured now, next to the naive way in the same run.

With words, only rows of those files (`page`, `recorder`, …). A row whose part does not exist yet says so. Exit code 0
whatever is over: a table is no test.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace

from tests.bench.row import Row, table

ROWS: tuple[tuple[str, str, str], ...] = (
    ("page", "read", "read the wanted signals of a page"),
    ("page", "scraped", "engine's cost of a hot scrape"),
    ("scrape", "hot", "hot scrape of a prometheus_client server"),
    ("scrape", "share", "a server's core at the default rates"),
    ("spans", "decoded", "OTLP spans decoded per core"),
    ("spans", "tree", "OTLP spans of the bundled engine's tree"),
    ("spans", "through_http", "OTLP spans through the HTTP receiver"),
    ("spans", "through_grpc", "OTLP spans through the gRPC receiver"),
    ("windows", "second_of_windows", "windows, 100 signals at 10 Hz"),
    ("rules", "whole_second", "pipeline, a second of one engine"),
    ("recorder", "per_sample", "recorder, bytes a sample"),
    ("recorder", "per_tick", "recorder, a tick of 100 signals"),
    ("recorder", "per_step", "recorder, bytes a step"),
    ("recorder", "per_span", "recorder, bytes a span"),
    ("ring", "written", "step ring in the engine"),
    ("vllm_plugin", "written", "vLLM stat-logger plugin, ring in a vLLM step"),
    ("nvml", "read", "NVML, Python per call, 8 devices at default rates"),
    ("host", "looked", "machine and an engine of ten processes"),
    ("agent", "cpu", "agent, CPU of a core"),
    ("agent", "memory", "agent, resident memory"),
    ("agent", "first_sample", "agent, start to first sample"),
    ("engine_loss", "lost", "engine lost to ring and page"),
    ("start", "help_shown", "gpuwatch --help"),
    ("virtual_time", "forty", "virtual time, 40 running, engine alone"),
    ("virtual_time", "day", "virtual time, a day of one engine"),
    ("virtual_time", "alone", "virtual time, engine and its telemetry"),
    ("virtual_time", "with_agent", "virtual time, with the agent"),
    ("detection", "quick", "detection, classes that act within steps (P50)"),
    ("detection", "recurrent", "detection, recurrent classes (P50)"),
)
"""File, function, and name of each row, in the order of the table."""

ELSEWHERE = (
    Row("% of a core", 1.0, what="engine lost in a vLLM API server",
        note="needs a vLLM: python -m tests.bench.real_vllm --vllm PYTHON --model DIR"),
)  # fmt: skip
"""What is measured by a program of its own."""


def measure(file: str, function: str, what: str) -> Row:
    """The row; one that cannot be imported is not built yet."""
    try:
        return replace(getattr(importlib.import_module(f"tests.bench.{file}"), function)(), what=what)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in {"gpuwatch", "engine_shim"}:
            raise
        return Row("", 0, built=False, note=f"needs {error.name}", what=what)


def main(words: list[str]) -> None:
    """Measure and print."""
    chosen = [row for row in ROWS if not words or row[0] in words]
    rows = []
    for n, row in enumerate(chosen, 1):
        if sys.stderr.isatty():
            print(f"\r{n}/{len(chosen)} {row[2]:<60}", end="", file=sys.stderr, flush=True)
        rows.append(measure(*row))
    if sys.stderr.isatty():
        print(f"\r{'':<70}\r", end="", file=sys.stderr)
    if not words:
        rows += ELSEWHERE
    print(table(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
