"""What a played scenario brought its clients and showed its watchers, read from the world stream as an agent would."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from engine_shim.demand.scenario import Scenario, load_scenario
from engine_shim.simulation.assemble import simulate

SCENARIOS = Path(__file__).parents[1] / "scenarios"


@dataclass
class Outcome:
    """Rows of the stream by kind; times are seconds from the start."""

    start: float
    until_s: float
    spans: list[dict[str, Any]] = field(default_factory=list)
    steps: dict[str, list[float]] = field(default_factory=dict)
    open_steps: list[tuple[float, dict[str, float] | None]] = field(default_factory=list)
    gpus: dict[str, list[tuple[float, dict[str, float]]]] = field(default_factory=dict)
    host: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    pages: list[tuple[float, str]] = field(default_factory=list)
    events: list[tuple[float, str, dict[str, Any]]] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)

    def requests(self, from_s: float = 0.0) -> list[dict[str, Any]]:
        """Whole requests that were sent at `from_s` or later and have ended."""
        return [s for s in self.spans if s["stage"] == "request" and s["start"] >= from_s]

    def stage_p95(self, stage: str, from_s: float) -> float:
        """P95 length of a stage's spans; 0 if there are none."""
        return _p95([s["end"] - s["start"] for s in self.spans if s["stage"] == stage and s["start"] >= from_s])

    def ttft_p95(self, from_s: float) -> float:
        """From being sent to the end of the first prefill."""
        first: dict[str, float] = {}
        for span in self.spans:
            if span["stage"] == "prefill":
                first.setdefault(span["request"], span["end"])
        sent = {s["request"]: s["start"] for s in self.requests(from_s)}
        return _p95([first[name] - at for name, at in sent.items() if name in first])

    def tpot_p95(self, from_s: float) -> float:
        """Decode seconds per token."""
        took: dict[str, tuple[float, float, int]] = {}
        for span in self.spans:
            if span["stage"] in ("decode", "requeue") and span["start"] >= from_s and span["output_tokens"] > 1:
                low, high, tokens = took.get(span["request"], (span["start"], span["end"], span["output_tokens"]))
                took[span["request"]] = (min(low, span["start"]), max(high, span["end"]), tokens)
        return _p95([(high - low) / tokens for low, high, tokens in took.values()])

    def step_p95(self, from_s: float) -> float:
        """P95 step time."""
        begun, ended = (np.array(self.steps[name]) for name in ("begun_at", "ended_at"))
        return _p95((ended - begun)[begun >= from_s].tolist())

    def served(self, from_s: float) -> int:
        """Requests that ended with an answer."""
        return sum(s["outcome"] in ("stop", "length") for s in self.requests(from_s))

    def tokens_per_s(self, from_s: float) -> float:
        """Tokens that the steps decoded, per second."""
        begun, tokens = (np.array(self.steps[name]) for name in ("begun_at", "decode_tokens"))
        return float(tokens[begun >= from_s].sum()) / (self.until_s - from_s)

    def mean(self, field_name: str, from_s: float, until_s: float | None = None) -> float:
        """Mean of a step field over steps that began then."""
        begun, values = (np.array(self.steps[name]) for name in ("begun_at", field_name))
        chosen = (begun >= from_s) & (begun < (until_s or self.until_s))
        return float(values[chosen].mean()) if chosen.any() else float("nan")

    def gpu(self, signal: str, from_s: float, until_s: float | None = None, index: int = 0) -> float:
        """Mean of a device signal."""
        rows = list(self.gpus.values())[index]
        return float(np.mean([r[signal] for t, r in rows if from_s < t <= (until_s or self.until_s)]))

    def of_host(self, signal: str, from_s: float) -> float:
        """Mean of a host signal."""
        return float(np.mean([row[signal] for t, row in self.host if t > from_s]))

    def page_value(self, name: str, from_s: float) -> list[float]:
        """Values of the engine's page on lines of that name, or that begin so where it has a label."""
        lines = [line for at, text in self.pages if at > from_s for line in text.splitlines() if line.startswith(name)]
        return [float(line.rsplit(" ", 1)[1]) for line in lines if "{" in name or line[len(name)] in "{ "]


def _p95(values: list[float]) -> float:
    return float(np.quantile(values, 0.95)) if values else 0.0


def read(stem: str, device: str = "h100") -> Scenario:
    """A scenario by its stem, wherever it lies."""
    path = next(p for folder in (SCENARIOS, SCENARIOS / "coming") if (p := folder / f"{stem}.toml").is_file())
    return load_scenario(path, device)


def play(scenario: Scenario, device: str = "h100", seed: int = 1, until_s: float | None = None) -> Outcome:
    """Play it in virtual time and read what it showed."""
    out = io.BytesIO()
    simulate(scenario, out, device=device, seed=seed, until_s=until_s)
    lines = out.getvalue().splitlines()
    decode = msgspec.json.Decoder().decode
    outcome = Outcome(decode(lines[0])["t"], until_s or scenario.duration_s)
    for line in lines[1:]:
        _add(outcome, decode(line))
    return outcome


def _add(outcome: Outcome, row: dict[str, Any]) -> None:
    at = row["t"] - outcome.start
    kind = row["src"]
    if kind == "steps":
        for name, values in row["cols"].items():
            seconds = name in ("begun_at", "ended_at")
            outcome.steps.setdefault(name, []).extend([v - outcome.start for v in values] if seconds else values)
        outcome.open_steps.append((at, row["open"]))
    elif kind == "spans":
        cols = row["cols"]
        for values in zip(*cols.values(), strict=True):
            span = dict(zip(cols, values, strict=True))
            span["start"] -= outcome.start
            span["end"] -= outcome.start
            outcome.spans.append(span)
    elif kind == "readings":
        values = {name: column[0] for name, column in row["cols"].items()}
        if "gpu" in row["subject"]:
            outcome.gpus.setdefault(row["subject"]["gpu"], []).append((at, values))
        else:
            outcome.host.append((at, values))
    elif kind == "page":
        outcome.pages.append((at, row["body"]))
    elif kind == "event":
        outcome.events.append((at, row["what"], row["detail"]))
    elif kind == "error":
        outcome.errors.append(at)
