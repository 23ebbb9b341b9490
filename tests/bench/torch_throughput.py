"""`python -m tests.bench.torch_throughput [--dtype bf16] [--pairs 5] [--threads 1] [--vllm PYTHON]`: tokens per second.

The torch runner next to `transformers` on the same checkpoint (shape 100m, random weights, written once to a temporary
folder), the same requests, the same concurrency and the same number of threads. `transformers` is tried both ways, its
continuous batching and plain batches of generate; the faster one counts. Runs are interleaved and compared pair by
pair, so that a busy machine disturbs both sides alike. Greedy, no end token: everybody computes the same tokens.

Rates are per second of CPU time of the process (with one thread that is what an idle machine would show on the wall)
and per second on the wall. `--vllm` names the interpreter of an environment that has vLLM's CPU build.
"""

from __future__ import annotations

import json
import logging
import os
import random
import statistics
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch

from engine_shim.clock import RealClock
from engine_shim.engine.engine import Engine
from engine_shim.model.llama import Llama
from engine_shim.model.shapes import SHAPES
from engine_shim.model.weights import load_folder
from engine_shim.request import Request
from engine_shim.runners.torch.heap import keep_large_blocks
from engine_shim.runners.torch.runner import TorchRunner
from engine_shim.settings.engine import EngineSettings

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SHAPE = SHAPES["100m"]
CONCURRENT = 16
STEP_TOKENS = 512
POOL_TOKENS = 16_384
Load = list[tuple[list[int], int]]  # prompts and how many tokens each is to get


def load_of(requests: int) -> Load:
    """Mixed lengths: prompts of 16 to 128 tokens, outputs of 32 to 128."""
    rng = random.Random(1)
    vocab = range(SHAPE.vocab)
    return [(rng.choices(vocab, k=rng.randint(16, 128)), rng.randint(32, 128)) for _ in range(requests)]


class Silent:
    """Telemetry of an engine that nobody watches."""

    def step_begun(self, record: list[float]) -> None: ...
    def step_ended(self, record: list[float]) -> None: ...
    def stage_changed(self, request: Request, stage: object, now: float) -> None: ...
    def finished(self, request: Request) -> None: ...


def ours(model: Llama, load: Load) -> list[list[int]]:
    """The outputs of the bundled engine."""
    settings = EngineSettings(
        kv_pool_tokens=POOL_TOKENS, max_num_seqs=CONCURRENT, max_step_tokens=STEP_TOKENS, prefix_cache=False
    )
    blocks = settings.pool_blocks()
    clock = RealClock()
    engine = Engine(settings, blocks, TorchRunner(model, blocks, settings.block_tokens, clock), clock, Silent())
    requests = [
        Request(str(i), len(prompt), output, clock.now(), output, prompt=prompt)
        for i, (prompt, output) in enumerate(load)
    ]
    for request in requests:
        engine.add(request)
    while engine.step():
        pass
    return [request.output for request in requests]


def in_batches(oracle: Any, load: Load) -> list[list[int]]:
    """The outputs of plain batched generate: prompts padded on the left, each batch as long as its longest output."""
    outputs = []
    for first in range(0, len(load), CONCURRENT):
        batch = load[first : first + CONCURRENT]
        width, longest = max(len(prompt) for prompt, _ in batch), max(output for _, output in batch)
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt, _ in batch])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt, _ in batch])
        made = oracle.generate(
            ids, attention_mask=mask, max_new_tokens=longest, do_sample=False, pad_token_id=0, eos_token_id=None
        )
        outputs += [row[width : width + output].tolist() for row, (_, output) in zip(made, batch, strict=True)]
    return outputs


def continuously(oracle: Any, load: Load) -> list[list[int]]:
    """The outputs of transformers' continuous batching, with the same pool and the same limits as ours."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    page = 256
    limits = ContinuousBatchingConfig(
        page_size=page, num_blocks=POOL_TOKENS // page, max_batch_tokens=STEP_TOKENS, max_requests_per_batch=CONCURRENT
    )
    greedy = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=128)
    done: dict[str, list[int]] = {}
    options = {"generation_config": greedy, "continuous_batching_config": limits, "warmup": False}
    with oracle.continuous_batching_context_manager(**options) as manager:
        for index, (prompt, output) in enumerate(load):
            manager.add_request(prompt, request_id=str(index), max_new_tokens=output)
        while len(done) < len(load):
            result = manager.get_result(timeout=60)
            if result is None:
                raise RuntimeError("transformers' continuous batching gave no result for a minute")
            if result.is_finished():
                done[result.request_id] = result.generated_tokens
    return [done[str(index)] for index in range(len(load))]


def rates(run: Callable[[], list[list[int]]], load: Load) -> tuple[float, float]:
    """Tokens per CPU second and per second of one run. RuntimeError if not everybody got the tokens asked for."""
    wall, cpu = time.perf_counter(), time.process_time()
    with torch.inference_mode():
        outputs = run()
    wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    tokens = sum(output for _, output in load)
    if [len(output) for output in outputs] != [output for _, output in load]:
        raise RuntimeError("not everybody got the tokens that were asked for")
    return tokens / cpu_s, tokens / wall_s


def checkpoint(folder: Path, dtype: torch.dtype) -> Any:
    """Random weights of the shape in `folder`, and the oracle that holds them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=SHAPE.vocab, hidden_size=SHAPE.hidden, intermediate_size=SHAPE.intermediate,
        num_hidden_layers=SHAPE.layers, num_attention_heads=SHAPE.heads, num_key_value_heads=SHAPE.kv_heads,
        tie_word_embeddings=SHAPE.tied_embeddings, max_position_embeddings=4096,
    )  # fmt: skip
    oracle = LlamaForCausalLM(config).to(dtype).eval()
    oracle.save_pretrained(folder)
    return oracle


VLLM = """
import json, sys, time
from vllm import LLM, SamplingParams
folder, dtype, path, concurrent, step_tokens = sys.argv[1:6]
load = json.load(open(path))
llm = LLM(model=folder, dtype=dtype, skip_tokenizer_init=True, max_num_seqs=int(concurrent), max_model_len=4096,
          max_num_batched_tokens=4096, enable_prefix_caching=False)
wishes = [SamplingParams(temperature=0, max_tokens=n, min_tokens=n, ignore_eos=True, detokenize=False) for _, n in load]
prompts = [{"prompt_token_ids": prompt} for prompt, _ in load]
for _ in range(3):
    wall, cpu, tokens = time.perf_counter(), time.process_time(), sum(n for _, n in load)
    llm.generate(prompts, wishes, use_tqdm=False)
    print("RATES", tokens / (time.process_time() - cpu), tokens / (time.perf_counter() - wall), flush=True)
"""


def vllm_rates(python: str, folder: Path, dtype: str, load: Load, threads: int) -> list[tuple[float, float]]:
    """Tokens per CPU second and per second of vLLM's CPU build in one process, the first run (warm-up) left out."""
    (folder / "load.json").write_text(json.dumps(load))
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind" if threads > 1 else "0",
    }  # fmt: skip
    name = {"fp32": "float32", "bf16": "bfloat16"}[dtype]
    command = [python, "-c", VLLM, str(folder), name, str(folder / "load.json"), str(CONCURRENT), str(STEP_TOKENS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    lines = (line.split() for line in done.stdout.splitlines() if line.startswith("RATES"))
    found = [(float(cpu), float(wall)) for _, cpu, wall in lines]
    if len(found) < 2:
        raise click.ClickException(f"vLLM did not run: {done.stderr[-2000:]}")
    return found[1:]


@click.command()
@click.option("--dtype", type=click.Choice(list(TYPES)), default="fp32", show_default=True)
@click.option("--pairs", default=5, show_default=True)
@click.option("--requests", default=32, show_default=True)
@click.option("--threads", default=1, show_default=True)
@click.option("--vllm", help="Python interpreter with vLLM.")
def main(dtype: str, pairs: int, requests: int, threads: int, vllm: str | None) -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(threads)
    keep_large_blocks()  # as the server does; the others run in the same process
    load = load_of(requests)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        oracle = checkpoint(folder, TYPES[dtype])
        model = load_folder(folder, TYPES[dtype])
        runs = {
            "torch runner": lambda: ours(model, load),
            "transformers, continuous batching": lambda: continuously(oracle, load),
            "transformers, batches of generate": lambda: in_batches(oracle, load),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
        for _ in range(pairs):
            for name, run in runs.items():
                found[name].append(rates(run, load))
        beside = vllm_rates(vllm, folder, dtype, load, threads) if vllm else []
    print(
        f"{SHAPE.name} {dtype}, {requests} requests, {CONCURRENT} at once, {threads} threads, {pairs} rounds (medians)"
    )
    mine = found["torch runner"]
    for name, values in found.items():
        ratios = [one[0] / other[0] for one, other in zip(mine, values, strict=True)]
        print(line(name, values), f"  ratio {statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})")
    if beside:
        ratio = statistics.median(cpu for cpu, _ in mine) / statistics.median(cpu for cpu, _ in beside)
        print(line("vLLM CPU build", beside), f"  ratio {ratio:.2f}")


def line(name: str, values: list[tuple[float, float]]) -> str:
    """Medians of tokens per CPU second and per second."""
    cpu, wall = (statistics.median(value[i] for value in values) for i in (0, 1))
    return f"{name:34} {cpu:7.1f} tokens/CPU-s {wall:7.1f} tokens/s"


if __name__ == "__main__":
    main()
