"""Bounded history of gauges and counters on a regular grid of one-second cells, fifteen minutes deep.

Each signal has four rows: the last value in a cell, the mean of its readings, the least and the greatest. A cell
without a reading holds the last value for three of the source's cadences, at least two seconds; after that it is NaN,
which means "not known". Counters are stored with the resets taken out: a fall is a restart, and the count goes on.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..model import Floats

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
        self.in_cell: Floats = np.zeros(0)  # the cell of the newest reading
        self.readings: Floats = np.zeros(0)  # how many readings that cell holds so far
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
            for attribute in ("held", "held_at", "moved_at", "offset", "raw", "in_cell", "readings"):
                old = getattr(self, attribute)
                fill = 0.0 if attribute in ("offset", "readings") else math.nan
                setattr(self, attribute, np.concatenate([old, np.full(n - len(old), fill)]))
        return np.fromiter((self.row[n] for n in names), np.intp, len(names))

    def write(self, names: tuple[str, ...], at: Floats, values: Floats, is_counter: NDArray[np.bool_]) -> None:
        """Take readings: `values[i, j]` of `names[j]` at `at[i]`, in order of time. NaN readings are skipped."""
        if not len(at):
            return
        self._learn_cadence(float(at[-1]))
        rows = self.rows(names)
        oldest = max(self.newest, math.floor(at[-1])) - CELLS + 1
        floor = max(oldest, float(np.fmax.reduce(self.held_at[rows], initial=-math.inf)))
        if at[0] < floor:  # older than the grid, or than what is known of these signals: cut and counted
            keep = at >= floor
            self.late += int((~keep).sum())
            at, values = at[keep], values[keep]
            if not len(at):
                return
        if is_counter.any():
            values = self._without_resets(rows, values, is_counter)
        if self.newest < 0:
            self.newest = math.floor(at[0]) - 1
        self.advance(math.floor(at[-1]) + 1.0)  # signals that are not in this block stand as they were
        unknown = np.isnan(values)
        if not unknown.any():
            self._put(rows, at, values)
            return
        whole = ~unknown.any(axis=0)
        if whole.any():
            self._put(rows[whole], at, values[:, whole])
        for j in np.flatnonzero(~whole):
            known = ~unknown[:, j]
            if known.any():
                self._put(rows[j : j + 1], at[known], values[known, j : j + 1])

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
        n = min(round(span_s), CELLS)
        last = math.floor(until) - 1
        first = last - n + 1
        begin = first % CELLS
        line = self.cells[self.row[name], kind]
        after = begin + n - CELLS  # cells beyond the end of the row lie at its start
        out: Floats = line[begin : begin + n].copy() if after <= 0 else np.concatenate((line[begin:], line[:after]))
        if last > self.newest:
            out[max(0, self.newest + 1 - first) :] = math.nan
        if first <= self.newest - CELLS:
            out[: self.newest - CELLS + 1 - first] = math.nan
        return out

    def _learn_cadence(self, at: float) -> None:
        gap = at - self.wrote_at
        if gap < 0:
            return
        self.wrote_at = at
        if math.isnan(gap) or gap < 0.01:
            return
        if math.isnan(self.cadence_s):
            self.cadence_s = min(gap, 30.0)
        elif gap < 4 * self.cadence_s + 1:  # a longer silence is an outage, not a new rhythm
            self.cadence_s += 0.3 * (min(gap, 30.0) - self.cadence_s)

    def _put(self, rows: NDArray[np.intp], at: Floats, values: Floats) -> None:
        """Write known readings into their cells; the first cell may hold readings of an earlier block."""
        if len(at) == 1 and self._put_one(rows, float(at[0]), values[0]):
            return
        cell = np.floor(at).astype(np.int64)
        starts = np.flatnonzero(np.concatenate([[True], cell[1:] != cell[:-1]]))
        ends = np.concatenate([starts[1:], [len(cell)]])
        n, where = ends - starts, cell[starts] % CELLS
        total = np.add.reduceat(values, starts, axis=0)
        least = np.minimum.reduceat(values, starts, axis=0)
        greatest = np.maximum.reduceat(values, starts, axis=0)
        count = np.repeat(n[:, None].astype(np.float64), len(rows), axis=1)
        again = self.in_cell[rows] == cell[0]
        if again.any():
            k, old = rows[again], self.cells[rows[again], :, where[0]]
            total[0, again] += old[:, MEAN] * self.readings[k]
            least[0, again] = np.minimum(least[0, again], old[:, LEAST])
            greatest[0, again] = np.maximum(greatest[0, again], old[:, GREATEST])
            count[0, again] += self.readings[k]
        last = values[ends - 1]
        grid = rows[:, None], where[None, :]
        for kind, found in ((LAST, last), (MEAN, total / count), (LEAST, least), (GREATEST, greatest)):
            self.cells[grid[0], kind, grid[1]] = found.T
        self.in_cell[rows], self.readings[rows] = cell[-1], count[-1]
        # Inside a block a value stands until the next one, the last one until the newest cell, if it is not too old.
        self._fill_gaps(rows, np.append(cell[starts], self.newest + 1), at[ends - 1], last)
        self._hold(rows, values, at)

    def _put_one(self, rows: NDArray[np.intp], at: float, values: Floats) -> bool:
        """The usual look, one reading of each signal; false where one of them has been read in this cell before."""
        cell = math.floor(at)
        if (self.in_cell[rows] == cell).any():
            return False
        first, last = cell, max(cell, min(self.newest, math.floor(at + self.hold_s) - 1))
        for k in range(first, last + 1):  # it stands until the newest cell, if it is not too old
            self.cells[rows, :, k % CELLS] = values[:, None]
        self.in_cell[rows], self.readings[rows] = cell, 1.0
        self.moved_at[rows[values != self.held[rows]]] = at
        self.held[rows], self.held_at[rows] = values, at
        return True

    def _fill_gaps(self, rows: NDArray[np.intp], cell: NDArray[np.int64], read_at: Floats, last: Floats) -> None:
        """Hold `last[i]`, read at `read_at[i]` in `cell[i]`, through the cells before `cell[i + 1]`."""
        for i in np.flatnonzero(np.diff(cell) > 1):
            until = min(int(cell[i + 1]), math.floor(read_at[i] + self.hold_s))
            for k in range(int(cell[i]) + 1, until):
                self.cells[rows, :, k % CELLS] = last[i][:, None]

    def _hold(self, rows: NDArray[np.intp], values: Floats, at: Floats) -> None:
        newest = values[-1]
        differs = values != newest
        inside = differs.any(axis=0)
        changed = inside | (newest != self.held[rows])
        since = np.where(inside, len(values) - np.argmax(differs[::-1], axis=0), 0)  # the row that brought this value
        self.moved_at[rows[changed]] = at[since[changed]]
        self.held[rows] = newest
        self.held_at[rows] = at[-1]

    def _without_resets(self, rows: NDArray[np.intp], values: Floats, is_counter: NDArray[np.bool_]) -> Floats:
        columns = np.flatnonzero(is_counter)
        these, told = rows[columns], values[:, columns]
        before = np.vstack((self.raw[these], told))
        with np.errstate(invalid="ignore"):
            rising = bool((before[1:] >= before[:-1]).all())
        if rising:  # the usual second: nothing restarted, nothing is missing
            self.raw[these] = told[-1]
            offset = self.offset[these]
            if not offset.any():
                return values
            values = values.copy()
            values[:, columns] = told + offset
            return values
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
