"""Static against continuous batching, on output lengths that differ: what iteration-level scheduling is worth.

    python -m engine_shim.studies.batching

The claim in the literature (Orca, OSDI 2022, and every engine since) is more than twice the throughput. A static batch
runs until its longest request has finished: rows that have ended are computed on as padding (charged on the modelled
device), and nobody new joins. The torch runner computes no padding, so there static batching only loses what empty
places in the batch cost: its figure is the lower end.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from .played import play_load

Table = dict[str, Any]
ENGINE: Table = {"model": "7b", "max_num_seqs": 64, "kv_pool_tokens": 300_000, "prefix_cache": False}
PROMPTS: Table = {"lognormal": 300, "sigma": 0.8, "min": 16, "max": 2000}
OUTPUTS: dict[str, Any] = {
    "uniform 16–1024": {"uniform": [16, 1024]},
    "log-normal, median 128, 16–1024": {"lognormal": 128, "sigma": 1.0, "min": 16, "max": 1024},
    "all 256": 256,
}
CLIENTS = 256  # so that nobody ever waits for demand
WARM_UP_S = 30.0


def modelled_tokens_per_s(batching: str, outputs: Any, seconds: float = 180.0) -> float:
    """Output tokens a second on a modelled H100, once the first batches are through."""
    load = {"arrivals": "closed", "concurrency": CLIENTS, "prompt_tokens": PROMPTS, "output_tokens": outputs}
    steps = play_load(ENGINE | {"batching": batching}, [load], seconds=seconds).steps
    late = steps["ended_at"] - steps["begun_at"][0] >= WARM_UP_S
    ended, tokens = steps["ended_at"][late], steps["generated_tokens_total"][late]
    return float((tokens[-1] - tokens[0]) / (ended[-1] - ended[0]))


def torch_tokens_per_s(batching: str, requests: int = 96, slots: int = 16, seed: int = 1) -> float:
    """Output tokens a second of the tiny model on this CPU, one thread, until all of a queue is served."""
    import torch

    from ..clock import RealClock
    from ..engine.engine import Engine
    from ..model.config import config_of
    from ..model.weights import seeded
    from ..request import Request
    from ..runners.torch.runner import TorchRunner
    from ..settings.engine import EngineSettings
    from .silence import Silence

    torch.set_num_threads(1)
    settings = EngineSettings(
        batching=batching, max_num_seqs=slots, kv_pool_tokens=32_768, dtype="fp32", kv_dtype="fp32", prefix_cache=False
    )
    blocks, clock = settings.pool_blocks(), RealClock()
    model = seeded(config_of(settings.shape), seed, torch.float32, "cpu")
    engine = Engine(settings, blocks, TorchRunner(model, blocks, settings.block_tokens, clock), clock, Silence())
    draw = np.random.default_rng(seed)
    outputs = np.clip(np.exp(draw.normal(np.log(48), 1.0, requests)), 8, 400).astype(int).tolist()
    for index, output in enumerate(outputs):
        ids = draw.integers(0, settings.shape.vocab, 40).tolist()
        engine.add(Request(f"r{index}", len(ids), output, clock.now(), output, prompt=ids))
    began = time.perf_counter()
    while engine.step() or engine.scheduler.waiting:
        pass
    return float(engine.counters.generated_tokens / (time.perf_counter() - began))


def main() -> None:
    """Print the table."""
    rows = [("modelled H100, 7B, output " + name, modelled_tokens_per_s, outputs) for name, outputs in OUTPUTS.items()]
    print("| runner and output lengths | static tokens/s | continuous tokens/s | ratio |\n|---|---|---|---|")
    for name, measure, outputs in rows:
        static, continuous = measure("static", outputs), measure("continuous", outputs)
        print(f"| {name} | {static:.0f} | {continuous:.0f} | {continuous / static:.2f} |")
    static, continuous = torch_tokens_per_s("static"), torch_tokens_per_s("continuous")
    name = "torch, tiny model, this CPU, output log-normal, median 48, 8–400"
    print(f"| {name} | {static:.0f} | {continuous:.0f} | {continuous / static:.2f} |")


if __name__ == "__main__":
    main()
