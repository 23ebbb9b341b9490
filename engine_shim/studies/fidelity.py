"""How well the modelled device predicts: `python -m engine_shim.studies.fidelity [SOURCE …]`.

Each line is a published measurement, what the engine on the modelled device makes of the same load, and the error. At
the end the median of the absolute errors by metric and by source. With names of sources (published.toml) only those.
`python -m engine_shim.studies.fidelity_torch` does the same with this machine's CPU, measured now.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence

from .fidelity_published import Compared, compare, sources

_UNITS = {
    "throughput": "tok/s", "ttft": "ms", "tpot": "ms", "kv tokens": "tokens", "max concurrency": "requests",
}  # fmt: skip


def main(names: Sequence[str]) -> int:
    """Print the tables; exit code 2 for a source that does not exist."""
    known = sources()
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no source {unknown[0]!r}; use some of: {', '.join(known)}", file=sys.stderr)
        return 2
    rows = list(compare(lambda source: not names or source in names))
    for source in dict.fromkeys(row.source for row in rows):
        print(_section(source, [row for row in rows if row.source == source]))
    print(summary(rows))
    return 0


def _section(source: str, rows: Sequence[Compared]) -> str:
    said = sources()[source]
    head = [f"{said['engine']}: {said['how']}", said["url"]]
    if "open" in said:
        head.append(f"left open: {said['open']}")
    return "\n".join([*head, *(_line(row) for row in rows), ""])


def _line(row: Compared) -> str:
    where = f"{row.gpus} × {row.device}" if row.gpus > 1 else row.device
    return (
        f"  {where:<10} {row.model:<16} {row.load:<28} {row.metric:<15} {_number(row.published):>9} "
        f"{_number(row.predicted):>9} {_UNITS[row.metric]:<8} {row.error_ratio:+5.0%}"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def summary(rows: Sequence[Compared]) -> str:
    """Median absolute errors, and the median of the signed ones: whether predictions are high or low."""
    groups: list[tuple[str, Callable[[Compared], str]]] = [
        ("metric", lambda r: r.metric), ("source", lambda r: r.source), ("device", lambda r: r.device),
    ]  # fmt: skip
    lines = ["median of |predicted / published − 1|, of the signed error, and the number of measurements"]
    for title, key in groups:
        values = dict.fromkeys(key(row) for row in rows)
        lines += [_group(f"{title} {value}", [row for row in rows if key(row) == value]) for value in values]
    return "\n".join([*lines, _group("all", rows)])


def _group(name: str, rows: Sequence[Compared]) -> str:
    errors = [row.error_ratio for row in rows]
    size = statistics.median(abs(error) for error in errors)
    return f"  {name:<26} {size:6.0%} {statistics.median(errors):+7.0%} {len(errors):5d}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
