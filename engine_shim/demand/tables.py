"""The tables of a scenario file as written; errors name the file and the key. Strict: unknown keys are errors."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Literal

import msgspec


class ScenarioError(ValueError):
    """A scenario that cannot be played; the message names the file and the key."""

    def __init__(self, file: str, key: str, message: str) -> None:
        super().__init__(f"{file}: {key}: {message}" if key else f"{file}: {message}")
        self.file = file
        self.key = key


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table whose unknown keys are errors."""


class RetryTable(_Table, frozen=True):
    """[load.retry]: clients that send again what got no first token in time."""

    timeout_s: float
    attempts: int = 3
    backoff_s: float = 1.0


class LoadTable(_Table, frozen=True):
    """One [[load]] table."""

    arrivals: Literal["poisson", "gamma", "uniform", "diurnal", "closed", "trace"] = "poisson"
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
    trace: str | None = None
    trace_from_s: float | None = None
    speed: float | None = None
    prompt_tokens: Any = None
    output_tokens: Any = None
    max_tokens: int | None = None
    shared_prefix_tokens: int = 0
    tenant: str = ""
    priority: Literal["interactive", "batch"] = "interactive"
    deadline_s: float | None = None
    abort_after_s: float | None = None
    retry: RetryTable | None = None
    draft_acceptance: float | None = None


class NeighborTable(_Table, frozen=True):
    """[neighbor]: another tenant on the engine's device (faults/tenants.py)."""

    dram_share: float = 0.0
    sm_share: float = 0.0
    from_s: float = 0.0
    until_s: float | None = None
    on_s: float | None = None
    off_s: float = 0.0
    isolated: bool = False


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
    isolate: bool = False
    no_retries: bool = False


class ScenarioFile(_Table, frozen=True):
    """The whole file."""

    about: str
    duration_s: float
    load: tuple[LoadTable, ...]
    expect: Expect
    engine: dict[str, Any] = {}
    device: dict[str, dict[str, Any]] = {}
    fault: tuple[dict[str, Any], ...] = ()
    neighbor: NeighborTable | None = None
    cure: Cure | None = None


_KINDS = {"": ScenarioFile, "load": LoadTable, "neighbor": NeighborTable, "expect": Expect, "cure": Cure}


def read_tables(table: dict[str, Any], file: str) -> ScenarioFile:
    """Types and known keys. Raises ScenarioError with a hint where a key looks like a typing error."""
    try:
        return msgspec.convert(table, ScenarioFile)
    except msgspec.ValidationError as e:
        raise _translated(str(e), file) from None


def _translated(text: str, file: str) -> ScenarioError:
    """`Object contains unknown field `x` - at `$.load[0]`` → file, load[0].x, a message."""
    message, _, where = text.partition(" - at `")
    key = where.rstrip("`").removeprefix("$").lstrip(".")
    quoted = message.split("`")
    if message.startswith("Object contains unknown field"):
        kind = _KINDS.get(key.partition("[")[0])
        known = [] if kind is None else [f.encode_name for f in msgspec.structs.fields(kind)]
        near = get_close_matches(quoted[1], known, n=1)
        return ScenarioError(file, f"{key}.{quoted[1]}".lstrip("."), f"unknown key{_hint(near)}")
    if message.startswith("Object missing required field"):
        return ScenarioError(file, f"{key}.{quoted[1]}".lstrip("."), "is missing")
    return ScenarioError(file, key, message[:1].lower() + message[1:])


def _hint(near: list[str]) -> str:
    return f"; did you mean {near[0]}?" if near else ""
