"""Bounded history of gauges and counters on a regular grid of one-second cells, fifteen minutes deep.

Each signal has four rows: the last value in a cell, the mean of its readings, the least and the greatest. A cell
without a reading holds the last value for three of the source's cadences, at least two seconds; after that it is NaN,
which means "not known". Counters are stored with the resets taken out: a fall is a restart, and the count goes on.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .model import Floats

LAST, MEAN, LEAST, GREATEST = 0, 1, 2, 3
CELLS = 900


class Tier:
    """The grid of one source's view of one subject. Cell k covers [k, k + 1) seconds of unix time."""

    def __init__(self) -> None:
        self.cadence_s = math.nan  # usual time between two writes
        self.wrote_at = math.nan
        self.row: dict[str, int] = {}
        self.cells = np.full((0, 4, CELLS), math.nan)
        self.newest = -1  # newest cell that was filled
        self.held: Floats = np.zeros(0)  # last value of each signal
        self.held_at: Floats = np.zeros(0)  # when it was read
        self.moved_at: Floats = np.zeros(0)  # when it last changed
        self.offset: Floats = np.zeros(0)  # what resets have added to counters
        self.raw: Floats = np.zeros(0)  # last counter value as read
        self.resets = 0
        self.late = 0

    @property
    def hold_s(self) -> float:
        """For how long a last value stands for the present."""
        return 3.0 if math.isnan(self.cadence_s) else max(2.0, 3 * self.cadence_s)

    def rows(self, names: tuple[str, ...]) -> NDArray[np.intp]:
        """The rows of these signals, made where they are new."""
        fresh = [n for n in names if n not in self.row]
        if fresh:
            for name in fresh:
                self.row[name] = len(self.row)
            n = len(self.row)
            grown = np.full((n, 4, CELLS), math.nan)
            grown[: len(self.cells)] = self.cells
            self.cells = grown
            for attribute, fill in (("held", math.nan), ("held_at", math.nan), ("moved_at", math.nan), ("offset", 0.0)):
                old = getattr(self, attribute)
                setattr(self, attribute, np.concatenate([old, np.full(n - len(old), fill)]))
            self.raw = np.concatenate([self.raw, np.full(n - len(self.raw), math.nan)])
        return np.fromiter((self.row[n] for n in names), np.intp, len(names))

    def write(self, names: tuple[str, ...], at: Floats, values: Floats, is_counter: NDArray[np.bool_]) -> None:
        """Take readings: `values[i, j]` of `names[j]` at `at[i]`, in order of time. NaN readings are skipped."""
        if not len(at):
            return
        self._learn_cadence(float(at[-1]))
        rows = self.rows(names)
        values = self._without_resets(rows, values, is_counter) if is_counter.any() else values
        cell = np.floor(at).astype(np.int64)
        if int(cell[-1]) > self.newest:
            self.advance(float(cell[0]))
            self._clear(self.newest + 1, int(cell[-1]))
            self.newest = max(self.newest, int(cell[-1]))
        floor = self.newest - CELLS + 1
        if cell[0] < floor:  # older than the grid: cut and counted
            keep = cell >= floor
            self.late += int((~keep).sum())
            at, values, cell = at[keep], values[keep], cell[keep]
            if not len(at):
                return
        starts = np.flatnonzero(np.concatenate([[True], cell[1:] != cell[:-1]]))
        ends = np.concatenate([starts[1:], [len(cell)]])
        where = cell[starts] % CELLS
        clean = not np.isnan(values).any()
        if clean:
            count = (ends - starts)[:, None]
            self.cells[rows[:, None], LAST, where[None, :]] = values[ends - 1].T
            self.cells[rows[:, None], MEAN, where[None, :]] = (np.add.reduceat(values, starts, axis=0) / count).T
            self.cells[rows[:, None], LEAST, where[None, :]] = np.minimum.reduceat(values, starts, axis=0).T
            self.cells[rows[:, None], GREATEST, where[None, :]] = np.maximum.reduceat(values, starts, axis=0).T
            self._fill_gaps(rows, cell[starts], values[ends - 1])
            self._hold(rows, values, at)
        else:
            for j, row in enumerate(rows):
                known = ~np.isnan(values[:, j])
                if known.any():
                    self._write_one(int(row), at[known], values[known, j])

    def advance(self, now: float) -> None:
        """Fill the cells up to, and without, the one that `now` lies in: last value held, or NaN when too old."""
        target = math.floor(now) - 1
        if self.newest < 0 or target <= self.newest:
            return
        first = max(self.newest + 1, target - CELLS + 1)
        self._clear(first, target)
        for k in range(first, min(target, first + math.ceil(self.hold_s) + 1) + 1):
            alive = k + 1 - self.held_at <= self.hold_s
            if alive.any():
                self.cells[alive, :, k % CELLS] = self.held[alive, None]
        self.newest = target

    def span(self, name: str, until: float, span_s: float, kind: int = LAST) -> Floats:
        """The cells of the `span_s` seconds before `until`, oldest first; KeyError for a signal never seen."""
        row = self.row[name]
        n = min(round(span_s), CELLS)
        last = math.floor(until) - 1
        k = np.arange(last - n + 1, last + 1)
        out: Floats = self.cells[row, kind, k % CELLS].copy()
        out[(k > self.newest) | (k <= self.newest - CELLS)] = math.nan
        return out

    def _learn_cadence(self, at: float) -> None:
        gap = at - self.wrote_at
        self.wrote_at = at
        if math.isnan(gap) or gap < 0.01:
            return
        if math.isnan(self.cadence_s):
            self.cadence_s = min(gap, 30.0)
        elif gap < 4 * self.cadence_s + 1:  # a longer silence is an outage, not a new rhythm
            self.cadence_s += 0.3 * (min(gap, 30.0) - self.cadence_s)

    def _fill_gaps(self, rows: NDArray[np.intp], cell: NDArray[np.int64], last: Floats) -> None:
        """Inside one block, a value stands until the next one: a step that takes seconds leaves no hole."""
        for i in np.flatnonzero(np.diff(cell) > 1):
            for k in range(int(cell[i]) + 1, min(int(cell[i + 1]), int(cell[i]) + 1 + math.ceil(self.hold_s))):
                self.cells[rows, :, k % CELLS] = last[i][:, None]

    def _write_one(self, row: int, at: Floats, values: Floats) -> None:
        for cell in np.unique(np.floor(at).astype(np.int64)):
            inside = values[np.floor(at) == cell]
            self.cells[row, :, cell % CELLS] = inside[-1], inside.mean(), inside.min(), inside.max()
        self._hold(np.array([row], np.intp), values[:, None], at)

    def _hold(self, rows: NDArray[np.intp], values: Floats, at: Floats) -> None:
        newest = values[-1]
        changed = newest != self.held[rows]
        if len(values) > 1:
            changed |= (values != newest).any(axis=0)
        self.moved_at[rows[changed]] = at[-1]
        self.held[rows] = newest
        self.held_at[rows] = at[-1]

    def _without_resets(self, rows: NDArray[np.intp], values: Floats, is_counter: NDArray[np.bool_]) -> Floats:
        values = values.copy()
        for j in np.flatnonzero(is_counter):
            row = rows[j]
            column = values[:, j]
            known = column[~np.isnan(column)]
            if not len(known):
                continue
            previous = self.raw[row]
            steps = np.diff(np.concatenate([[previous if not math.isnan(previous) else known[0]], known]))
            lifted = known + self.offset[row]
            for i in np.flatnonzero(steps < 0):
                before = known[i - 1] if i else previous
                lifted[i:] += before
                self.offset[row] += before
                self.resets += 1
            self.raw[row] = known[-1]
            values[~np.isnan(column), j] = lifted
        return values

    def _clear(self, first: int, last: int) -> None:
        if last - first + 1 >= CELLS:
            self.cells[:] = math.nan
            return
        k = np.arange(first, last + 1)
        self.cells[:, :, k % CELLS] = math.nan
