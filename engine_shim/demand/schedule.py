"""`schedule`: the demand of a scenario for a real engine, as JSON lines: who plays it needs nothing else of this package.

First the header: `{"schedule": 1, "scenario", "about", "duration_s", "serve": [arguments], "faults": [tables]}`. Then one
line an arrival, ascending: `{"at_s", "prompt_tokens", "max_tokens", "tenant", "shared_prefix_tokens", "stream"}`,
of a batch request also `"priority": 1`.
`max_tokens` is the length that the answer shall have: the tiny model does not end by itself.

A real engine on a CPU is no H100, so a scenario may have a form of its own for it, `torch/<stem>.toml` beside the file.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from ..settings.engine import EngineSettings
from .scenario import Scenario, ScenarioError, load_scenario
from .shipped import find_scenario

DEVICE = "torch"
_NOT_FOR_TORCH = ("dtype", "kv_dtype", "kv_pool_ratio", "tensor_parallel", "memory_ratio")


@click.command()
@click.argument("scenario")
@click.option("--device", default=DEVICE, show_default=True, type=click.Choice([DEVICE]), help="Who will serve it.")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0, 2**32 - 1), help="Seed of the demand.")
def schedule(scenario: str, device: str, seed: int) -> None:
    """Print the arrivals of SCENARIO for a real engine, a path or the name of one that is shipped."""
    path = torch_form(scenario)
    try:
        read = load_scenario(path, device)
        check_playable(read, str(path))
    except ScenarioError as error:
        raise click.UsageError(str(error)) from None
    for line in lines(read, seed):
        sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def torch_form(name: str) -> Path:
    """A file that was named by its path, or the torch form of a shipped scenario. UsageError lists what there is."""
    path = find_scenario(name)
    if path == Path(name):
        return path
    form = path.parent / DEVICE / path.name
    if form.is_file():
        return form
    known = ", ".join(sorted(file.stem for file in form.parent.glob("*.toml"))) or "(none)"
    raise click.UsageError(f"scenario {name!r} has no form for a real engine on this machine; these have one: {known}")


def check_playable(scenario: Scenario, file: str) -> None:
    """Refuse what only a modelled device can play. Raises ScenarioError."""
    for i, stream in enumerate(scenario.streams):
        if stream.arrivals == "closed":
            raise ScenarioError(file, f"load[{i}].arrivals", "a closed loop has no arrivals that could be told ahead")
        if stream.rate_per_s is None and stream.replay is None:
            raise ScenarioError(file, f"load[{i}].rho", "a real engine's capacity is not known; give rate_per_s")
    if not scenario.engine.kv_pool_tokens:
        raise ScenarioError(file, "engine.kv_pool_tokens", "is needed: a real engine has no room to derive it from")


def lines(scenario: Scenario, seed: int) -> Iterator[dict[str, Any]]:
    """Header and arrivals."""
    from .arrivals import Demand

    pool_tokens = scenario.engine.kv_pool_tokens
    rates = [stream.rate_per_s or 0.0 for stream in scenario.streams]
    yield {
        "schedule": 1,
        "scenario": scenario.stem,
        "about": scenario.about,
        "duration_s": scenario.duration_s,
        "serve": serve_arguments(scenario.engine),
        "faults": list(scenario.fault_tables),
    }
    demand = Demand(scenario.streams, rates, pool_tokens=pool_tokens, seed=seed, start=0.0)
    while (at := demand.peek()) < math.inf:
        request = demand.take()
        line = {
            "at_s": round(at, 4),
            "prompt_tokens": request.prompt_tokens,
            "max_tokens": request.stop_after,
            "tenant": request.tenant,
            "shared_prefix_tokens": request.prefix_tokens,
            "stream": request.id.rpartition("-")[0],
        }
        yield line | {"priority": request.priority} if request.priority else line


def serve_arguments(settings: EngineSettings) -> list[str]:
    """The options of `serve` that make this engine: every setting that is not the default."""
    out: list[str] = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.name in _NOT_FOR_TORCH or value == field.default:
            continue
        flag = field.name.replace("_", "-")
        out += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return out
