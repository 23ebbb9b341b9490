"""One run of the scoreboard: which scenario, on what, and with what changed; and the scenario that this makes.

A variant changes the demand or the model of a scenario in a way that leaves its label alone, so that the verdict is tried
beyond the numbers in the repository: `rate±PERCENT`, `length±PERCENT`, `model=NAME`.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from engine_shim.demand.scenario import Scenario, parse_scenario
from engine_shim.devices.profile_file import device_named
from engine_shim.settings.engine import EngineSettings, room_tokens

SCENARIOS = Path(__file__).parents[2] / "scenarios"
VARIANTS = ("rate-20", "rate+20", "length-20", "length+20", "model=1b", "model=8b", "model=13b")
_CHANGE = re.compile(r"(rate|length)([+-]\d+)|model=(\w+)")
_LARGEST_OF_POOL = 0.95


@dataclass(frozen=True, order=True)
class Case:
    """What to play. `duration_s` 0: the scenario's own; a longer one extends the streams that have no end."""

    stem: str
    device: str = "h100"
    seed: int = 1
    mode: str = "full"
    cured: bool = False
    variant: str = ""
    duration_s: float = 0.0

    @property
    def plain(self) -> Case:
        """The same demand without its cure, seen in full: what is true of it is read there."""
        return replace(self, mode="full", cured=False)

    def __str__(self) -> str:
        words = [self.stem, self.device, f"seed {self.seed}", self.variant]
        words += [self.mode] if self.mode != "full" else []
        words += ["cured"] if self.cured else []
        return " · ".join(word for word in words if word)


def stems() -> tuple[str, ...]:
    """Every scenario for modelled devices."""
    return tuple(sorted(file.stem for file in SCENARIOS.glob("*.toml")))


def scenario_of(case: Case) -> Scenario:
    """The scenario to play. ScenarioError or ValueError for one that cannot be."""
    table = _table(case.stem)
    if case.duration_s:
        table["duration_s"] = case.duration_s
    if case.variant:
        _vary(table, case)
    scenario = parse_scenario(table, file=f"{case.stem}.toml", stem=case.stem, device=case.device)
    return scenario.cured() if case.cured else scenario


@cache
def expectation(stem: str) -> dict[str, Any]:
    """The scenario's [expect]."""
    expect: dict[str, Any] = _table(stem)["expect"]
    return expect


@cache
def has_cure(stem: str) -> bool:
    """Whether the scenario names a cure."""
    return "cure" in _table(stem)


def _table(stem: str) -> dict[str, Any]:
    return tomllib.loads((SCENARIOS / f"{stem}.toml").read_text(encoding="utf-8"))


def _vary(table: dict[str, Any], case: Case) -> None:
    parts = _CHANGE.fullmatch(case.variant)
    if parts is None:
        raise ValueError(f"variant {case.variant!r}: one of rate±PERCENT, length±PERCENT, model=NAME is needed")
    what, percent, model = parts.groups()
    if model:
        _use_model(table, model, case.device)
    elif what == "rate":
        _scale_rates(table, 1 + int(percent) / 100)
    else:
        _scale_lengths(table, 1 + int(percent) / 100, ("prompt_tokens", "output_tokens", "max_tokens"))


def _scale_rates(table: dict[str, Any], factor: float) -> None:
    """More or fewer requests. One that comes once stays one."""
    for load in table["load"]:
        for key in ("rate_per_s", "rho"):
            if key in load and not _comes_once(load):
                load[key] *= factor
        if "concurrency" in load:
            load["concurrency"] = round(load["concurrency"] * factor)


def _comes_once(load: dict[str, Any]) -> bool:
    span_s = load.get("until_s", float("inf")) - load.get("from_s", 0.0)
    return bool(load.get("rate_per_s", float("inf")) * span_s <= 1)


def _scale_lengths(table: dict[str, Any], factor: float, keys: tuple[str, ...]) -> None:
    """Longer or shorter prompts and answers; nothing that could not fit the pool at all."""
    pool = table["engine"].get("kv_pool_tokens", 0)
    for load in table["load"]:
        for key in keys:
            if key in load:
                limit = int(_LARGEST_OF_POOL * pool) if pool and key == "prompt_tokens" else 10_000_000
                load[key] = _scaled(load[key], factor, limit)


def _scaled(value: Any, factor: float, limit: int) -> Any:
    """A length distribution with every length × `factor`; shares and the shape of the distribution stay."""
    if isinstance(value, int):
        return min(limit, max(1, round(value * factor)))
    if isinstance(value, list):
        return [_scaled(item, factor, limit) for item in value]
    if isinstance(value, dict):
        return {
            k: v if k in ("share", "sigma", "pool_uniform") else _scaled(v, factor, limit) for k, v in value.items()
        }
    return value


def _use_model(table: dict[str, Any], model: str, device: str) -> None:
    """Another model; where its KV is too large for the pool that the file asks for, pool and prompts shrink together."""
    engine = table["engine"]
    engine["model"] = model
    for overrides in table.get("device", {}).values():
        overrides.pop("model", None)
    wanted = engine.get("kv_pool_tokens", 0)
    room = room_tokens(EngineSettings.from_table({**engine, "kv_pool_tokens": 0}), device_named(device))
    if wanted > room:
        engine["kv_pool_tokens"] = int(_LARGEST_OF_POOL * room)
        _scale_lengths(table, engine["kv_pool_tokens"] / wanted, ("prompt_tokens",))
