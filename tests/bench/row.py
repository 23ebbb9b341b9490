"""A row of the table of budgets, and how it is judged. Values are in the unit of the row; NaN means not measured."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "over", "not built yet", "not measured"]


@dataclass(frozen=True)
class Row:
    """What one thing costs now, what the naive way costs in the same run, and what it may cost.

    `higher_is_better` is for rates. `ratio_budget` asks for that many times the naive way's speed. `note` says what was
    measured, where the name leaves it open, or why nothing was. `what` is the row's name, given
    by the table's list.
    """

    unit: str
    budget: float
    now: float = math.nan
    naive: float = math.nan
    higher_is_better: bool = False
    ratio_budget: float = 0.0
    note: str = ""
    built: bool = True
    what: str = ""

    @property
    def ratio(self) -> float:
        """How many times better than the naive way; NaN where one of them is missing."""
        if not (self.now > 0 and self.naive > 0):
            return math.nan
        return self.now / self.naive if self.higher_is_better else self.naive / self.now

    @property
    def state(self) -> State:
        """Within the budget or over it. The budget is inclusive."""
        if not self.built:
            return "not built yet"
        if math.isnan(self.now):
            return "not measured"
        within = self.now >= self.budget if self.higher_is_better else self.now <= self.budget
        return "ok" if within and (not self.ratio_budget or self.ratio >= self.ratio_budget) else "over"


def table(rows: list[Row]) -> str:
    """The rows as aligned text, notes below."""
    head = ("what", "now", "naive, same run", "ratio", "budget", "")
    lines = [head, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    text.insert(1, "  ".join("─" * width for width in widths))
    notes = [f"{row.what}: {row.note}" for row in rows if row.note]
    return "\n".join([*text, "", *notes])


def _cells(row: Row) -> tuple[str, ...]:
    bound = "≥" if row.higher_is_better else "≤"
    budget = f"{bound} {_number(row.budget)} {row.unit}" if row.built else ""
    if row.ratio_budget:
        budget += f", {row.ratio_budget:.0f}×"
    ratio = "" if math.isnan(row.ratio) else f"{row.ratio:.3g}×"
    return (row.what, _measured(row.now, row.unit), _measured(row.naive, row.unit), ratio, budget, row.state)


def _measured(value: float, unit: str) -> str:
    return "–" if math.isnan(value) else f"{_number(value)} {unit}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
