"""Everything that the net plays, by key: public cases, recorded pages, capsules, and scenarios by device, seed and sources.

`cases/STEM`, `captures/STEM`, `capsules/STEM`, `scenarios/STEM/DEVICE/SEED/SOURCES`; sources are `full` (everything that
can be seen) or `defaults` (an engine's page and a stock dcgm-exporter). The slice for every push is one seed on one
device; healthy controls are in it with default sources only, since tests/test_healthy_controls.py plays them in full.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.net.outcome import Outcome, outcome_of
from tests.net.product import (
    REFUSED,
    Call,
    Played,
    calls_of_capture,
    calls_of_file,
    classes_of_clues,
    diagnosed,
    has_two_judges,
    played,
    replayed,
    world,
)

TESTS = Path(__file__).parents[1]
CAPSULES = Path(__file__).parent / "capsules"
DEVICES = ("h100", "a100")
SEEDS = (1, 2)
MODES = {"full": "full", "defaults": "vllm-defaults"}
OF_A_CASE = (".log", ".prom")
SAME_IN_FULL = frozenset({
    "admission_deferred", "admission_deferred_grammar", "cold_start", "engine_crash", "gpu_noisy_neighbor",
    "host_memory_leak", "kv_offload_stall", "length_shift", "prefix_cache_collapse", "quantization_fallback",
    "retry_storm", "runaway_generation", "spec_decode_regression", "start_failure", "step_time_regression",
    "straggler_gpu", "streaming_jitter",
})  # fmt: skip
"""Scenarios with the same golden outcome whatever is seen: in full they are played at night, and by the command."""


@cache
def scenario_files() -> dict[str, Path]:
    """Scenario files by stem, wherever they lie; those for real engines play in real time and are left out."""
    found = sorted((TESTS / "scenarios").rglob("*.toml"))
    return {file.stem: file for file in found if "torch" not in file.parts}


def all_keys() -> tuple[str, ...]:
    """Every key, in a stable order."""
    files = [f"cases/{p.stem}" for p in sorted((TESTS / "cases").iterdir()) if p.suffix in OF_A_CASE]
    files += [f"captures/{p.stem}" for p in sorted((TESTS / "captures").rglob("*.txt"))]
    files += [f"capsules/{p.stem}" for p in sorted(CAPSULES.glob("*.capsule"))]
    return (*files, *_scenario_keys())


def _scenario_keys() -> Iterator[str]:
    for stem in sorted(scenario_files()):
        for device in DEVICES:
            for seed in SEEDS:
                yield from (f"scenarios/{stem}/{device}/{seed}/{sources}" for sources in MODES)


def in_slice(key: str) -> bool:
    """Whether a key is played on every push."""
    kind, stem, *rest = key.split("/")
    if kind != "scenarios":
        return True
    if rest[:2] != [DEVICES[0], str(SEEDS[0])]:
        return False
    return rest[2] == "defaults" or (not stem.startswith("healthy_") and stem not in SAME_IN_FULL)


class Ran(NamedTuple):
    """The outcome of an input, and what each of today's two judges names on its own; None where only one can judge."""

    outcome: Outcome
    judges: tuple[str, str] | None = None


def run(key: str) -> Ran:
    """Play one input. KeyError or StopIteration for a key that there is not."""
    kind, stem, *rest = key.split("/")
    try:
        if kind == "scenarios":
            return _scenario(stem, *rest)
        return _capsule(CAPSULES / f"{stem}.capsule") if kind == "capsules" else _file(file_of(key))
    except (*REFUSED, ValueError) as error:
        return Ran(Outcome(refused=str(error).replace(f"{TESTS}/", "")[:160]))


def file_of(key: str) -> Path:
    """The file behind a case or a capture."""
    kind, stem = key.split("/", 1)
    suffixes = OF_A_CASE if kind == "cases" else (".txt",)
    return next(p for p in sorted((TESTS / kind).rglob(f"{stem}.*")) if p.suffix in suffixes)


def stream_of(stem: str, device: str, seed: str, sources: str) -> bytes:
    """The capture of a scenario. ValueError where it cannot be played on the device."""
    return world(scenario_files()[stem], device, int(seed), MODES[sources])


def _scenario(stem: str, device: str, seed: str, sources: str) -> Ran:
    given = tuple(calls_of_capture(stream_of(stem, device, seed, sources)))
    ran = played(given)
    return Ran(outcome_of(ran.concluded, ran.transitions, given[0][0]), _judges(ran, given))


def _file(path: Path) -> Ran:
    """What `diagnose` says of a file; the transitions are those of its calls."""
    given = tuple(calls_of_file(path))
    ran = played(given)
    return Ran(outcome_of(diagnosed([path]), ran.transitions, given[0][0]), _judges(ran, given))


def _capsule(path: Path) -> Ran:
    begin, transitions, _ = replayed(path)
    return Ran(outcome_of(diagnosed([path]), transitions, begin))


def _judges(ran: Played, given: tuple[Call, ...]) -> tuple[str, str] | None:
    if not has_two_judges():
        return None
    by_pipeline = {(i.severity, i.rule) for i in ran.running.incidents}
    return _classes(by_pipeline), _classes(classes_of_clues(given))


def _classes(found: set[tuple[str, str]]) -> str:
    """Classes that are more than an explanation; empty for none."""
    return " + ".join(sorted({rule for severity, rule in found if severity != "info"}))


def disagreement(judges: tuple[str, str]) -> tuple[str, str] | None:
    """What the pipeline and the clues name where both name something, and not the same."""
    by_pipeline, by_clues = judges
    return judges if by_pipeline and by_clues and by_pipeline != by_clues else None
