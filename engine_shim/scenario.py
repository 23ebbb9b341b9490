"""Scenario files (docs/scenario.md): what is served, on what, under which load, what breaks, and what should be said.

Read strictly: an unknown key, an impossible value or a missing part raises ScenarioError with the file and the key.
Times are seconds from the scenario's start.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec

from .devices import DEVICES
from .lengths import Fixed, LengthError, Lengths, parse_lengths
from .settings import EngineSettings

ARRIVALS = ("poisson", "gamma", "uniform", "diurnal", "closed")
FAULTS = ("hung_step", "slow_step", "restart", "crash")
MAX_DURATION_S = 7 * 86_400.0


class ScenarioError(ValueError):
    """A scenario that cannot be played; the message names the file and the key."""

    def __init__(self, file: str, key: str, message: str) -> None:
        super().__init__(f"{file}: {key}: {message}" if key else f"{file}: {message}")
        self.file = file
        self.key = key


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table whose unknown keys are errors."""


class LoadTable(_Table, frozen=True):
    """One [[load]] table as written."""

    arrivals: Literal["poisson", "gamma", "uniform", "diurnal", "closed"] = "poisson"
    name: str = ""
    from_s: float = 0.0
    until_s: float | None = None
    rate_per_s: float | None = None
    rho: float | None = None
    cv: float | None = None
    period_s: float | None = None
    swing_ratio: float | None = None
    concurrency: int | None = None
    think_s: float = 0.0
    prompt_tokens: Any = None
    output_tokens: Any = None
    max_tokens: int | None = None
    shared_prefix_tokens: int = 0
    tenant: str = ""


class FaultTable(_Table, frozen=True):
    """One [[fault]] table: what breaks, when, until when, and how much."""

    kind: Literal["hung_step", "slow_step", "restart", "crash"]
    at_s: float
    until_s: float | None = None
    factor: float | None = None
    down_s: float | None = None


class Expect(_Table, frozen=True):
    """[expect]: the class that a good diagnosis names, or `none`, and when."""

    class_: str = msgspec.field(name="class")
    between_s: tuple[float, float] | None = None
    trigger: str | None = None
    symptoms: tuple[str, ...] = ()
    onset_s: float | None = None


class Cure(_Table, frozen=True):
    """[cure]: what must make the incident go away on the same demand."""

    engine: dict[str, Any] = {}
    load_scale: float = 1.0
    pool_scale: float = 1.0
    drop_faults: bool = False
    drop_streams: tuple[str, ...] = ()


class _File(_Table, frozen=True):
    about: str
    duration_s: float
    load: tuple[LoadTable, ...]
    expect: Expect
    engine: dict[str, Any] = {}
    device: dict[str, dict[str, Any]] = {}
    fault: tuple[FaultTable, ...] = ()
    cure: Cure | None = None


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream of requests. Lengths may be shares of the pool; one of rate_per_s, rho and concurrency is set."""

    name: str
    index: int
    arrivals: str
    from_s: float
    until_s: float
    prompt: Lengths
    output: Lengths
    rate_per_s: float | None = None
    rho: float | None = None
    concurrency: int = 0
    think_s: float = 0.0
    cv: float = 1.0
    period_s: float = 0.0
    swing_ratio: float = 0.0
    max_tokens: int | None = None
    shared_prefix_tokens: int = 0
    tenant: str = ""
    thinned: float = 1.0  # share of the stream's demand that is kept (a cure's load_scale)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A checked scenario for one device."""

    stem: str
    about: str
    duration_s: float
    engine: EngineSettings
    streams: tuple[Stream, ...]
    faults: tuple[FaultTable, ...]
    expect: Expect
    cure: Cure | None
    pool_scale: float = 1.0  # of the KV pool that `engine` has on its device (a cure's pool_scale)

    def cured(self) -> Scenario:
        """The same demand with the cure applied. ValueError if the scenario names none."""
        cure = self.cure
        if cure is None:
            raise ValueError(f"scenario {self.stem} names no cure")
        streams = tuple(
            replace(s, thinned=s.thinned * cure.load_scale) for s in self.streams if s.name not in cure.drop_streams
        )
        return replace(
            self,
            engine=self.engine.replaced(cure.engine),
            streams=streams,
            faults=() if cure.drop_faults else self.faults,
            pool_scale=self.pool_scale * cure.pool_scale,
        )


def load_scenario(path: Path, device: str, changes: tuple[tuple[str, str], ...] = ()) -> Scenario:
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
    try:
        read = msgspec.convert(table, _File)
    except msgspec.ValidationError as e:
        raise _translated(file, e) from None
    if not 0 < read.duration_s <= MAX_DURATION_S:
        raise ScenarioError(file, "duration_s", f"must be between 0 and {MAX_DURATION_S:.0f}, got {read.duration_s:g}")
    if not read.load:
        raise ScenarioError(file, "load", "at least one [[load]] is needed")
    engine = _engine(read, file, device)
    streams = tuple(_stream(row, i, read.duration_s, file) for i, row in enumerate(read.load))
    for i, fault in enumerate(read.fault):
        _check_fault(fault, f"fault[{i}]", read.duration_s, file)
    _check_expect(read.expect, read.duration_s, file)
    if read.cure is not None:
        _check_cure(read.cure, engine, streams, file)
    return Scenario(stem, read.about, read.duration_s, engine, streams, read.fault, read.expect, read.cure)


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
    for part, follower in pairwise(parts):
        try:
            target = (
                target[part]
                if isinstance(part, int)
                else target.setdefault(part, [] if isinstance(follower, int) else {})
            )
        except (IndexError, KeyError, TypeError, AttributeError):
            raise ScenarioError("--set", key, f"there is no {part!r} in the scenario") from None
    try:
        target[parts[-1]] = value
    except (IndexError, TypeError):
        raise ScenarioError("--set", key, f"there is no {parts[-1]!r} in the scenario") from None


def _engine(read: _File, file: str, device: str) -> EngineSettings:
    for name in read.device:
        if name not in DEVICES and name != "torch":
            near = get_close_matches(name, [*DEVICES, "torch"], n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(DEVICES)}, torch"
            raise ScenarioError(file, f"device.{name}", f"no such device{hint}")
    try:
        settings = EngineSettings.from_table(read.engine)
    except ValueError as e:
        raise ScenarioError(file, "engine", str(e)) from None
    chosen = settings
    for name, table in read.device.items():  # every override is checked, also those of other devices
        try:
            merged = settings.replaced(table)
        except ValueError as e:
            raise ScenarioError(file, f"device.{name}", str(e)) from None
        chosen = merged if name == device else chosen
    return chosen


def _stream(row: LoadTable, index: int, duration_s: float, file: str) -> Stream:
    key = f"load[{index}]"
    until_s = duration_s if row.until_s is None else row.until_s
    _check_demand(row, key, file)
    if not 0 <= row.from_s < until_s:
        raise ScenarioError(file, f"{key}.until_s", f"must lie after from_s: {row.from_s:g} to {until_s:g}")
    if row.shared_prefix_tokens < 0:
        raise ScenarioError(file, f"{key}.shared_prefix_tokens", "must not be negative")
    if row.max_tokens is not None and row.max_tokens < 1:
        raise ScenarioError(file, f"{key}.max_tokens", f"must be at least 1, got {row.max_tokens}")
    return Stream(
        name=row.name or f"load{index}",
        index=index,
        arrivals=row.arrivals,
        from_s=row.from_s,
        until_s=until_s,
        prompt=_lengths(row.prompt_tokens, f"{key}.prompt_tokens", file),
        output=_lengths(row.output_tokens, f"{key}.output_tokens", file),
        rate_per_s=row.rate_per_s,
        rho=row.rho,
        concurrency=row.concurrency or 0,
        think_s=row.think_s,
        cv=1.0 if row.cv is None else row.cv,
        period_s=row.period_s or 0.0,
        swing_ratio=row.swing_ratio or 0.0,
        max_tokens=row.max_tokens,
        shared_prefix_tokens=row.shared_prefix_tokens,
        tenant=row.tenant,
    )


def _check_demand(row: LoadTable, key: str, file: str) -> None:
    """What each kind of arrivals needs, and that nothing is given that it would ignore."""
    needs = {"gamma": ("cv",), "diurnal": ("period_s", "swing_ratio"), "closed": ("concurrency",)}
    for kind, names in needs.items():
        for name in names:
            if kind == row.arrivals and getattr(row, name) is None:
                raise ScenarioError(file, f"{key}.{name}", f"arrivals = {kind!r} needs it")
            if kind != row.arrivals and getattr(row, name) is not None:
                raise ScenarioError(file, f"{key}.{name}", f"has no meaning with arrivals = {row.arrivals!r}")
    given = [name for name in ("rate_per_s", "rho") if getattr(row, name) is not None]
    if row.arrivals == "closed":
        if given:
            raise ScenarioError(file, f"{key}.{given[0]}", "a closed loop has no rate of its own")
    elif len(given) != 1:
        raise ScenarioError(file, f"{key}.rate_per_s", "exactly one of rate_per_s and rho is needed")
    for name, low, high in (
        ("rate_per_s", 0.0, 1e5), ("rho", 0.0, 100.0), ("cv", 0.0, 50.0), ("period_s", 0.0, MAX_DURATION_S),
        ("concurrency", 0, 1e5),
    ):  # fmt: skip
        value = getattr(row, name)
        if value is not None and not low < value <= high:
            raise ScenarioError(file, f"{key}.{name}", f"must be above {low:g} and at most {high:g}, got {value:g}")
    if row.swing_ratio is not None and not 0 <= row.swing_ratio <= 1:
        raise ScenarioError(file, f"{key}.swing_ratio", f"must be between 0 and 1, got {row.swing_ratio:g}")
    if row.think_s < 0 or (row.think_s and row.arrivals != "closed"):
        raise ScenarioError(file, f"{key}.think_s", "is the pause of a closed loop's clients, and not negative")


def _lengths(value: object, key: str, file: str) -> Lengths:
    if value is None:
        raise ScenarioError(file, key, "is missing")
    try:
        return parse_lengths(value)
    except LengthError as e:
        raise ScenarioError(file, f"{key}.{e.key}" if e.key else key, e.message) from None


def _check_fault(fault: FaultTable, key: str, duration_s: float, file: str) -> None:
    if not 0 <= fault.at_s < duration_s:
        raise ScenarioError(file, f"{key}.at_s", f"must lie within the duration, got {fault.at_s:g}")
    if fault.until_s is not None and fault.until_s <= fault.at_s:
        raise ScenarioError(file, f"{key}.until_s", f"must lie after at_s, got {fault.until_s:g}")
    takes = {"slow_step": "factor", "restart": "down_s"}
    for kind, name in takes.items():
        value = getattr(fault, name)
        if fault.kind == kind and (value is None or value <= 0):
            raise ScenarioError(file, f"{key}.{name}", f"{kind} needs a positive {name}")
        if fault.kind != kind and value is not None:
            raise ScenarioError(file, f"{key}.{name}", f"has no meaning for {fault.kind}")
    if fault.kind in ("hung_step", "slow_step") and fault.until_s is None:
        raise ScenarioError(file, f"{key}.until_s", f"{fault.kind} needs an end")


def _check_expect(expect: Expect, duration_s: float, file: str) -> None:
    if expect.between_s is not None:
        low, high = expect.between_s
        if not 0 <= low < high <= duration_s:
            raise ScenarioError(
                file, "expect.between_s", f"must be an interval within the duration, got {low:g}, {high:g}"
            )
    if expect.class_ == "none" and expect.between_s is not None:
        raise ScenarioError(file, "expect.between_s", "nothing is expected to open")
    if expect.class_ != "none" and expect.between_s is None:
        raise ScenarioError(file, "expect.between_s", f"is needed for class {expect.class_}")


def _check_cure(cure: Cure, engine: EngineSettings, streams: tuple[Stream, ...], file: str) -> None:
    try:
        engine.replaced(cure.engine)
    except ValueError as e:
        raise ScenarioError(file, "cure.engine", str(e)) from None
    names = {s.name for s in streams}
    for name in cure.drop_streams:
        if name not in names:
            raise ScenarioError(
                file, "cure.drop_streams", f"there is no stream {name!r}; known: {', '.join(sorted(names))}"
            )
    for key in ("load_scale", "pool_scale"):
        if getattr(cure, key) <= 0:
            raise ScenarioError(file, f"cure.{key}", "must be positive")
    if cure.load_scale > 1:
        raise ScenarioError(file, "cure.load_scale", "must be at most 1: a cure thins the demand out")


def _translated(file: str, error: msgspec.ValidationError) -> ScenarioError:
    """`Object contains unknown field `x` - at `$.load[0]`` → file, load[0].x, a message."""
    message, _, where = str(error).partition(" - at `")
    key = where.rstrip("`").removeprefix("$").lstrip(".")
    quoted = message.split("`")
    if message.startswith("Object contains unknown field"):
        near = get_close_matches(quoted[1], _known_keys(key), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return ScenarioError(file, f"{key}.{quoted[1]}".lstrip("."), f"unknown key{hint}")
    if message.startswith("Object missing required field"):
        return ScenarioError(file, f"{key}.{quoted[1]}".lstrip("."), "is missing")
    return ScenarioError(file, key, message[:1].lower() + message[1:])


def _known_keys(table: str) -> list[str]:
    kinds = {"": _File, "load": LoadTable, "fault": FaultTable, "expect": Expect, "cure": Cure}
    kind = kinds.get(table.partition("[")[0])
    return [] if kind is None else [f.encode_name for f in msgspec.structs.fields(kind)]


__all__ = [
    "ARRIVALS",
    "FAULTS",
    "Cure",
    "Expect",
    "Fixed",
    "Scenario",
    "ScenarioError",
    "Stream",
    "load_scenario",
    "parse_scenario",
]
