"""How many requests a second an engine can serve, estimated from the roofline runner: what `rho` in a scenario means.

At saturation the batch is as large as sequences and KV pool allow. A request then costs its share of the decode steps
it takes part in, plus the compute of its prefill, which shares steps with decodes. The estimate ignores scheduling:
head-of-line blocking, preemption and admission order only ever lower the real capacity.
"""

from __future__ import annotations

import numpy as np

from ..request import Request
from ..runners.modelled.runner import ModelRunner
from ..settings.engine import EngineSettings
from ..step import StepPlan
from .lengths import grid_tokens
from .streams import Stream

_PREFILLS = 64  # prompt lengths that stand for the distribution


def capacity_per_s(stream: Stream, settings: EngineSettings, runner: ModelRunner, pool_tokens: int) -> float:
    """Requests per second of this stream's lengths that the engine could serve if it served nothing else."""
    prompts = grid_tokens(stream.prompt, pool_tokens)
    outputs = grid_tokens(stream.output, pool_tokens)
    if stream.max_tokens is not None:
        outputs = np.minimum(outputs, stream.max_tokens)
    output_mean = float(outputs.mean())
    # While it decodes, a request holds its prompt and on average half of its output, weighted by how long it decodes.
    held = float(prompts.mean() + (outputs**2).mean() / (2 * output_mean))
    batch = int(np.clip(pool_tokens / held, 1, settings.max_num_seqs))
    _, step_s = runner.decode_stretch(batch, np.array([batch * held]))
    shared = np.minimum(stream.shared_prefix_tokens, prompts - 1) if settings.prefix_cache else 0
    sampled = (prompts - shared)[:: len(prompts) // _PREFILLS]
    prefill_s = float(np.mean([_prefill_seconds(int(tokens), settings, runner) for tokens in sampled]))
    return 1 / (output_mean * float(step_s[0]) / batch + prefill_s)


def rate_per_s(stream: Stream, settings: EngineSettings, runner: ModelRunner, pool_tokens: int) -> float:
    """The stream's mean arrival rate: as given, or `rho` times the capacity; 0 for a closed loop."""
    if stream.rate_per_s is not None:
        return stream.rate_per_s
    if stream.rho is None:
        return 0.0
    return stream.rho * capacity_per_s(stream, settings, runner, pool_tokens)


def shortest_tokens(stream: Stream, pool_tokens: int) -> int:
    """Prompt and output tokens that the stream's shortest requests ask for."""
    prompts, outputs = grid_tokens(stream.prompt, pool_tokens), grid_tokens(stream.output, pool_tokens)
    return int(prompts.min()) + (stream.max_tokens or int(outputs.min()))


def _prefill_seconds(tokens: int, settings: EngineSettings, runner: ModelRunner) -> float:
    """Compute seconds of one prompt, in chunks as the settings cut it."""
    chunk_tokens = settings.max_chunk_tokens or settings.max_step_tokens
    request = Request(id="", prompt_tokens=tokens, max_tokens=1, arrived_at=0.0, stop_after=1)
    compute_s = 0.0
    while request.computed_tokens < tokens:
        chunk = min(chunk_tokens, tokens - request.computed_tokens)
        runner.run(StepPlan(prefill=[(request, chunk)]))
        compute_s += runner.work[0]
        request.computed_tokens += chunk
    return compute_s
