"""The scoreboard's tables: per class precision, recall and time to detection, the confusion matrix, labels, deviations."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from tests.bench.scores.case import expectation
from tests.bench.scores.judge import (
    detection_s,
    deviations,
    did_not_happen,
    expected_of,
    is_class_right,
    is_harmful,
    is_label_sound,
)
from tests.bench.scores.play import Run

QUICK_S = (5.0, 15.0)
DEMAND_S = 30.0
RECURRENT_S = 20.0
RECURRENT_CYCLES = 3.0


def percentile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least a share q of them does not exceed; NaN for none."""
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)] if values else math.nan


def budget_s(run: Run) -> float:
    """How long detection may take (P95): recurrent classes need three cycles, demand half a minute of a growing queue."""
    expected = expected_of(run)
    if expected == "batch_thrashing":
        period_s = run.truth.period_s if run.truth else math.nan
        return max(RECURRENT_S, RECURRENT_CYCLES * period_s) if not math.isnan(period_s) else math.nan
    return DEMAND_S if expected in ("overload", "traffic_surge", "long_context_kv_pressure") else QUICK_S[1]


def scores(runs: Iterable[Run]) -> dict[str, Any]:
    """Everything that is printed, as plain data. `runs`: played ones of one telemetry mode, without cures."""
    played = [run for run in runs if not run.trouble]
    confusion: dict[str, Counter[str]] = defaultdict(Counter)
    for run in played:
        confusion[expected_of(run)][run.top] += 1
    classes = sorted({expected_of(r) for r in played} | {r.top for r in played} - {"none"})
    return {
        "runs": len(played),
        "right": sum(not deviations(run) for run in played),
        "classes": {c: _class(c, played) for c in classes},
        "confusion": {expected: dict(found) for expected, found in sorted(confusion.items())},
        "harmful": [str(run.case) for run in played if is_harmful(run)],
        "deviations": {str(run.case): deviations(run) for run in played if deviations(run)},
    }


def _class(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    """One row. An incident counts for precision wherever it stands at the top level, the first or not."""
    mine = [run for run in runs if expected_of(run) == name]
    named = [run for run in runs for s in run.seen if s.rule == name] if name != "none" else []
    wrong = [run for run in named if expected_of(run) != name]
    quiet = [run for run in runs if not run.seen]
    precision = 1 - len(wrong) / len(named) if named else math.nan
    if name == "none":
        precision = sum(expected_of(run) == "none" for run in quiet) / len(quiet) if quiet else math.nan
    waits = [wait for run in mine if (wait := detection_s(run)) is not None]
    budgets = [b for run in mine if not math.isnan(b := budget_s(run))]
    severities = Counter(s.severity for run in mine for s in run.seen if s.rule == name)
    return {
        "runs": len(mine),
        "precision": precision,
        "recall": sum(map(is_class_right, mine)) / len(mine) if mine else math.nan,
        "right": sum(not deviations(run) for run in mine),
        "detection_p50_s": statistics.median(waits) if waits else math.nan,
        "detection_p95_s": percentile(waits, 0.95),
        "budget_s": statistics.median(budgets) if budgets and name != "none" else math.nan,
        "pages_per_incident": sum(run.pages for run in mine) / len(mine) if mine else math.nan,
        "severity": dict(severities),
    }


def labels(plain: Iterable[Run], cured: Iterable[Run]) -> list[dict[str, Any]]:
    """The check of each label by its cure, over seeds and devices together."""
    demand = {run.case: run for run in plain if run.truth is not None}
    rows: dict[str, dict[str, Any]] = {}
    for run in cured:
        before = demand.get(run.case.plain)
        if before is None or run.truth is None or before.truth is None:
            continue
        works, unique = is_label_sound(before, run)
        row = rows.setdefault(
            run.case.stem,
            {
                "scenario": run.case.stem,
                "runs": 0,
                "cured": 0,
                "unique": 0,
                "late": 0,
                "late_cured": 0,
                "left": Counter(),
            },
        )
        row["runs"] += 1
        row["cured"] += works
        row["unique"] += unique
        row["late"] += before.truth.late
        row["late_cured"] += run.truth.late
        row["left"].update(s.rule for s in run.seen)
    return [{**row, "left": dict(row["left"])} for row in rows.values()]


def variants(runs: Iterable[Run]) -> dict[str, dict[str, Any]]:
    """Per class: how many variants are right, in how many the incident did not come about, what was said in the others."""
    rows: dict[str, dict[str, Any]] = {}
    for run in runs:
        row = rows.setdefault(
            str(expectation(run.case.stem)["class"]), {"runs": 0, "right": 0, "did_not_happen": 0, "wrong": {}}
        )
        if run.trouble:
            continue
        row["runs"] += 1
        if is_class_right(run):
            row["right"] += 1
        elif did_not_happen(run):
            row["did_not_happen"] += 1
        else:
            row["wrong"][str(run.case)] = " + ".join(s.rule for s in run.seen) or "none"
    return rows


def text(board: dict[str, Any]) -> str:
    """The board as a screen of text."""
    out = [f"{board['right']} of {board['runs']} runs are right in every respect", "", *_class_lines(board["classes"])]
    out += ["", *_confusion_lines(board["confusion"])]
    out += ["", f"harmful actions: {len(board['harmful'])}", *(f"  {name}" for name in board["harmful"])]
    if board["deviations"]:
        out += ["", "what deviates:"]
        out += [f"  {name}: {'; '.join(what)}" for name, what in sorted(board["deviations"].items())]
    return "\n".join(out)


def _class_lines(classes: dict[str, dict[str, Any]]) -> list[str]:
    head = ("class", "runs", "right", "precision", "recall", "found P50", "P95", "budget", "pages each", "severity")
    rows = [
        (
            name,
            str(c["runs"]),
            str(c["right"]),
            *(_number(c[key], ".2f") for key in ("precision", "recall")),
            *(_number(c[key], ".0f", " s") for key in ("detection_p50_s", "detection_p95_s", "budget_s")),
            _number(c["pages_per_incident"], ".1f"),
            ", ".join(f"{count} {severity}" for severity, count in sorted(c["severity"].items())),
        )
        for name, c in classes.items()
    ]
    return aligned([head, *rows])


def _confusion_lines(confusion: dict[str, dict[str, int]]) -> list[str]:
    columns = sorted({found for row in confusion.values() for found in row})
    head = ("expected ↓ · top of the verdict →", *columns)
    return aligned([head, *((name, *(str(row.get(c, "·")) for c in columns)) for name, row in confusion.items())])


def label_text(rows: list[dict[str, Any]]) -> str:
    """The labels as a table."""
    head = ("label checked by its cure", "cured", "unique", "late requests", "with the cure", "what stays")
    lines = [
        (
            row["scenario"],
            f"{row['cured']}/{row['runs']}",
            f"{row['unique']}/{row['runs']}" + ("" if row["unique"] == row["runs"] else "  not unique"),
            f"{row['late']:,}",
            f"{row['late_cured']:,}" + (f" ({1 - row['late_cured'] / row['late']:.0%} fewer)" if row["late"] else ""),
            ", ".join(f"{count} {rule}" for rule, count in sorted(row["left"].items())),
        )
        for row in rows
    ]
    return "\n".join(aligned([head, *lines]))


def variant_text(rows: dict[str, dict[str, Any]]) -> str:
    """The variants as a table, wrong ones below."""
    head = ("class in variants", "runs", "right", "did not come about", "wrong")
    lines = [
        (name, str(r["runs"]), str(r["right"]), str(r["did_not_happen"]), str(len(r["wrong"])))
        for name, r in rows.items()
    ]
    wrong = [f"  {case}: {said}" for row in rows.values() for case, said in sorted(row["wrong"].items())]
    return "\n".join([*aligned([head, *lines]), "", *wrong])


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Columns under their heads."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    rows = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return [rows[0], "  ".join("─" * width for width in widths), *rows[1:]]


def _number(value: float, form: str, unit: str = "") -> str:
    return "–" if math.isnan(value) else f"{value:{form}}{unit}"
