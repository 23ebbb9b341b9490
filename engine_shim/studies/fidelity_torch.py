"""How well a fitted profile predicts this machine's CPU: `python -m engine_shim.studies.fidelity_torch [--seconds N]`.

For each model a profile is fitted to the torch runner's probe steps (calibrate/). Then the engine serves a load that the
fit has never seen, with prompts and answers of many lengths, and each of its steps is predicted. One thread, CPU seconds
of this process, so that neighbours on the machine count little. They slow caches all the same: the load is served several
times, before and after the fit, and a step's time is the lower quartile, as that of a probe is. Takes a few minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..calibrate.command import BLOCK_TOKENS, calibrate_torch, torch_runner
from ..calibrate.fit import errors_of
from ..calibrate.measure import CpuClock
from ..calibrate.probes import demand_of
from ..engine.engine import Engine
from ..request import Request
from ..runners.modelled.runner import ModelRunner
from ..settings.engine import EngineSettings
from ..step import Runner, StepPlan
from .silence import Silence

# Requests, and the longest prompt and answer in tokens: steps of a 100M model take a tenth of a second and more.
LOADS = {"tiny": (60, 600, 120), "100m": (16, 300, 60)}
REPEATS = {"tiny": (3, 3), "100m": (1, 2)}  # before the fit and after
POOL_TOKENS = 16_384


@dataclass(frozen=True, slots=True)
class Served:
    """What was asked of each step, and what it took in seconds."""

    demands: list[tuple[float, ...]]
    seconds: list[float]


class _Watched:
    """A runner that notes what it is asked for and how long it takes."""

    def __init__(self, inner: Runner) -> None:
        self.inner = inner
        self.served = Served([], [])

    def run(self, plan: StepPlan) -> tuple[list[int], float]:
        """See step.Runner."""
        demand = demand_of(plan)
        tokens, seconds = self.inner.run(plan)
        if demand[0]:
            self.served.demands.append(demand)
            self.served.seconds.append(seconds)
        return tokens, seconds


def serve(model: str, seed: int = 5) -> tuple[Served, EngineSettings]:
    """Serve the model's load on torch, step by step, requests coming in every few steps."""
    import torch

    torch.set_num_threads(1)
    count, prompt_most, answer_most = LOADS[model]
    settings = EngineSettings.from_table({
        "model": model, "dtype": "fp32", "kv_dtype": "fp32", "kv_pool_tokens": POOL_TOKENS, "max_num_seqs": 16,
        "max_step_tokens": 256, "block_tokens": BLOCK_TOKENS, "prefix_cache": False,
    })  # fmt: skip
    blocks = settings.pool_blocks()
    runner = _Watched(torch_runner(settings, torch.float32, "cpu", blocks, alone=True))
    engine, draw = Engine(settings, blocks, runner, CpuClock(), Silence()), np.random.default_rng(seed)
    waiting = [_request(n, draw, prompt_most, answer_most, settings.shape.vocab) for n in range(count)]
    while waiting or engine.has_mail() or engine.scheduler.running:
        if waiting and draw.random() < 0.3:
            engine.add(waiting.pop())
        engine.step()
    return runner.served, settings


def lower_quartile(runs: Sequence[Served]) -> Served:
    """The same steps, served several times."""
    demands = runs[0].demands
    if any(run.demands != demands for run in runs):
        raise ValueError("the runs did not consist of the same steps")
    return Served(demands, np.quantile([run.seconds for run in runs], 0.25, axis=0).tolist())


def _request(number: int, draw: np.random.Generator, prompt_most: int, answer_most: int, vocab: int) -> Request:
    prompt = draw.integers(0, vocab, int(draw.integers(4, prompt_most))).tolist()
    answer = int(draw.integers(2, answer_most))
    return Request(f"r{number}", len(prompt), answer, 0.0, answer, prompt=prompt)


def main(arguments: Sequence[str]) -> int:
    """Print the table."""
    seconds = float(arguments[1]) if len(arguments) == 2 and arguments[0] == "--seconds" else 60.0
    if arguments and len(arguments) != 2:
        print("usage: python -m engine_shim.studies.fidelity_torch [--seconds N]", file=sys.stderr)
        return 2
    print(
        f"{'model':<6} {'probes':>7} {'unseen':>8} │ {'steps':>6} {'median error':>13} {'P90':>6} {'in all':>7}   one step"
    )
    for model in LOADS:
        before, after = REPEATS[model]
        runs = [serve(model) for _ in range(before)]
        found, _ = calibrate_torch("cpu", model, None, 1, seconds)
        runs += [serve(model) for _ in range(after)]
        served, settings = lower_quartile([run for run, _ in runs]), runs[0][1]
        errors = errors_of(found.device, settings, served.demands, served.seconds)
        predicted = ModelRunner(settings, found.device).seconds(np.array(served.demands))
        whole = float(predicted.sum()) / sum(served.seconds) - 1
        print(
            f"{model:<6} {len(found.probes):>7} {found.held_out_error_ratio:>8.1%} │ {len(errors):>6} "
            f"{float(np.median(errors)):>13.1%} {float(np.quantile(errors, 0.9)):>6.0%} {whole:>+7.0%}   "
            f"{min(served.seconds) * 1e3:.2f}–{max(served.seconds) * 1e3:.0f} ms"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
