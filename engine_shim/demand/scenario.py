"""Scenario files (docs/scenario.md): what is served, on what, under which load, what breaks, and what should be said.

Read strictly: an unknown key, an impossible value or a missing part raises ScenarioError with the file and the key.
Times are seconds from the scenario's start.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from ..devices.profiles import DEVICES
from ..faults import Fault, fault_from_table
from ..settings.engine import EngineSettings
from .streams import Stream, check_names, read_stream
from .tables import Cure, Expect, NeighborTable, ScenarioError, ScenarioFile, read_tables

__all__ = ["Cure", "Expect", "Scenario", "ScenarioError", "Stream", "load_scenario", "parse_scenario"]

MAX_DURATION_S = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A checked scenario for one device.

    `engine` is what runs; `demand_engine` is what the file says without a cure: load factors and shares of the pool
    refer to it, so that a cured run meets the same demand.
    """

    stem: str
    about: str
    duration_s: float
    engine: EngineSettings
    demand_engine: EngineSettings
    streams: tuple[Stream, ...]
    fault_tables: tuple[dict[str, Any], ...]
    expect: Expect
    cure: Cure | None
    pool_scale: float = 1.0  # of the pool that `engine` would have (a cure's pool_scale)

    def faults(self, start: float) -> list[Fault]:
        """What breaks, at clock times; `start` is the clock time of the scenario's start."""
        return [fault_from_table(table, start) for table in self.fault_tables]

    def cured(self) -> Scenario:
        """The same demand with the cure applied. ValueError if the scenario names none."""
        cure = self.cure
        if cure is None:
            raise ValueError(f"scenario {self.stem} names no cure")
        kept = (s for s in self.streams if s.name not in cure.drop_streams)
        return replace(
            self,
            engine=self.engine.replaced(cure.engine),
            streams=tuple(
                replace(s, kept=s.kept * cure.load_scale, retry=None if cure.no_retries else s.retry) for s in kept
            ),
            fault_tables=() if cure.drop_faults else tuple(_cured_fault(table, cure) for table in self.fault_tables),
            pool_scale=self.pool_scale * cure.pool_scale,
        )


def load_scenario(path: Path, device: str, changes: Sequence[tuple[str, str]] = ()) -> Scenario:
    """Read the file for one device; `changes` are (dotted key, TOML value) pairs that replace what it says."""
    file = str(path)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise ScenarioError(file, "", e.strerror or str(e)) from None
    except UnicodeDecodeError:
        raise ScenarioError(file, "", "is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as e:
        raise ScenarioError(file, "", f"is not TOML: {e}") from None
    for key, value in changes:
        _change(table, key, value)
    return parse_scenario(table, file=file, stem=path.stem, device=device)


def parse_scenario(table: dict[str, Any], *, file: str, stem: str, device: str) -> Scenario:
    """Check a parsed file. Raises ScenarioError."""
    read = read_tables(table, file)
    if not 0 < read.duration_s <= MAX_DURATION_S:
        raise ScenarioError(file, "duration_s", f"must be between 0 and {MAX_DURATION_S:.0f}, got {read.duration_s:g}")
    if not read.load:
        raise ScenarioError(file, "load", "at least one [[load]] is needed")
    engine = _engine(read, file, device)
    streams = tuple(read_stream(row, i, read.duration_s, file) for i, row in enumerate(read.load))
    check_names(streams, file)
    faults = (*read.fault, *_neighbor_faults(read.neighbor, file))
    for i, fault in enumerate(read.fault):
        _check_fault(fault, f"fault[{i}]", read.duration_s, file)
    _check_expect(read.expect, read.duration_s, file)
    if read.cure is not None:
        _check_cure(read.cure, engine, streams, file)
    return Scenario(
        stem, read.about, read.duration_s, engine, engine, streams, faults, read.expect, read.cure
    )  # fmt: skip


def _engine(read: ScenarioFile, file: str, device: str) -> EngineSettings:
    """[engine] with the chosen device's overrides; those of other devices are checked as well."""
    known = [*DEVICES, "torch"]
    try:
        settings = EngineSettings.from_table(read.engine)
    except ValueError as e:
        raise ScenarioError(file, "engine", str(e)) from None
    chosen = settings
    for name, table in read.device.items():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise ScenarioError(file, f"device.{name}", f"no such device; {hint}")
        try:
            merged = settings.replaced(table)
        except ValueError as e:
            raise ScenarioError(file, f"device.{name}", str(e)) from None
        chosen = merged if name == device else chosen
    return chosen


def _check_fault(table: dict[str, Any], key: str, duration_s: float, file: str) -> None:
    try:
        fault_from_table(table, 0.0)
    except ValueError as e:
        raise ScenarioError(file, key, str(e)) from None
    if table["at_s"] >= duration_s:
        raise ScenarioError(file, f"{key}.at_s", f"must lie within the duration, got {table['at_s']:g}")


def _neighbor_faults(neighbor: NeighborTable | None, file: str) -> list[dict[str, Any]]:
    """[neighbor] as the fault that it is."""
    if neighbor is None:
        return []
    given = {name: value for name, value in to_builtins(neighbor).items() if value is not None}
    table = {"kind": "neighbor", "at_s": given.pop("from_s"), **given}
    try:
        fault_from_table(table, 0.0)
    except ValueError as e:
        raise ScenarioError(file, "neighbor", str(e)) from None
    return [table]


def _cured_fault(table: dict[str, Any], cure: Cure) -> dict[str, Any]:
    return {**table, "isolated": True} if cure.isolate and table["kind"] == "neighbor" else table


def _check_expect(expect: Expect, duration_s: float, file: str) -> None:
    if expect.class_ == "none":
        if expect.between_s is not None:
            raise ScenarioError(file, "expect.between_s", "nothing is expected to open")
        return
    if expect.between_s is None:
        raise ScenarioError(file, "expect.between_s", f"is needed for class {expect.class_}")
    low, high = expect.between_s
    if not 0 <= low < high <= duration_s:
        raise ScenarioError(file, "expect.between_s", f"must be an interval within the duration, got {low:g}, {high:g}")


def _check_cure(cure: Cure, engine: EngineSettings, streams: tuple[Stream, ...], file: str) -> None:
    try:
        engine.replaced(cure.engine)
    except ValueError as e:
        raise ScenarioError(file, "cure.engine", str(e)) from None
    names = {s.name for s in streams}
    for name in cure.drop_streams:
        if name not in names:
            known = ", ".join(sorted(names))
            raise ScenarioError(file, "cure.drop_streams", f"there is no stream {name!r}; known: {known}")
    if names <= set(cure.drop_streams):
        raise ScenarioError(file, "cure.drop_streams", "drops every stream")
    if not 0 < cure.load_scale <= 1:
        raise ScenarioError(file, "cure.load_scale", "must be above 0 and at most 1: a cure thins the demand out")
    if not 0 < cure.pool_scale <= 1000:
        raise ScenarioError(file, "cure.pool_scale", "must be above 0 and at most 1000")


def _change(table: dict[str, Any], key: str, text: str) -> None:
    """Set `engine.max_num_seqs` or `load[0].rate_per_s` to a TOML value; a bare word is a string."""
    try:
        value = tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        value = text
    parts: list[str | int] = []
    for part in key.split("."):
        name, bracket, index = part.partition("[")
        parts.append(name)
        if bracket:
            if not (index.endswith("]") and index[:-1].isdigit()):
                raise ScenarioError("--set", key, "an index looks like load[0]")
            parts.append(int(index[:-1]))
    target: Any = table
    try:
        for part, follower in pairwise(parts):
            if isinstance(part, str) and isinstance(follower, str):
                target.setdefault(part, {})
            target = target[part]
        target[parts[-1]] = value
    except (IndexError, KeyError, TypeError, AttributeError):
        raise ScenarioError("--set", key, "there is no such place in the scenario") from None
