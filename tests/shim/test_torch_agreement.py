"""The torch runner computes what `transformers` computes, whatever the chunks, the blocks and the company."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import LlamaConfig as OracleConfig
from transformers import LlamaForCausalLM

from engine_shim.clock import VirtualClock
from engine_shim.model.weights import load_folder
from engine_shim.request import Request
from engine_shim.runners.torch.runner import TorchRunner
from engine_shim.step import StepPlan

BLOCK_TOKENS = 8
VOCAB = 97
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SHAPES = {
    "grouped heads, own head": {"num_key_value_heads": 2, "tie_word_embeddings": False},
    "one head each, tied": {"num_key_value_heads": 4, "tie_word_embeddings": True},
    "llama3 rope": {"num_key_value_heads": 1, "tie_word_embeddings": False, "rope_parameters": LLAMA3},
    "free head size": {"num_key_value_heads": 2, "tie_word_embeddings": False, "head_dim": 24},
}


@pytest.fixture(scope="module", params=SHAPES.values(), ids=SHAPES.keys())
def pair(request, tmp_path_factory):
    """The same random float32 weights twice: in the oracle, and through our loader."""
    torch.set_num_threads(1)
    torch.manual_seed(11)
    config = OracleConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=112,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=1024,
        initializer_range=0.2,
        rms_norm_eps=1e-5,
        **request.param,
    )
    oracle = LlamaForCausalLM(config).eval()
    folder = tmp_path_factory.mktemp("weights")
    oracle.save_pretrained(folder)
    return oracle, load_folder(folder)


def prompt_of(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCAB) for _ in range(length)]


class Bench:
    """A runner with a shuffled free list: physical blocks are never in order."""

    def __init__(self, model, blocks: int = 256) -> None:
        self.runner = TorchRunner(model, blocks, BLOCK_TOKENS, VirtualClock())
        self.free = list(range(blocks))
        random.Random(5).shuffle(self.free)

    def admit(self, prompt: list[int], room: int = 0, shared: list[int] | None = None) -> Request:
        request = Request("r", len(prompt), 512, 0.0, 512, prompt=prompt)
        request.blocks = list(shared or [])
        request.computed_tokens = len(request.blocks) * BLOCK_TOKENS
        while len(request.blocks) * BLOCK_TOKENS < len(prompt) + room:
            request.blocks.append(self.free.pop())
        return request

    def prefill(self, request: Request, chunk: int) -> torch.Tensor:
        """Compute all that is known of the request in chunks; the logits after its last token."""
        while True:
            tokens = min(chunk, request.total_tokens - request.computed_tokens)
            logits = self.runner.logits(StepPlan(prefill=[(request, tokens)]))
            request.computed_tokens += tokens
            if request.computed_tokens == request.total_tokens:
                return logits[0]
            assert len(logits) == 0, "a chunk in the middle samples nothing"

    def decode(self, requests: list[Request]) -> torch.Tensor:
        logits = self.runner.logits(StepPlan(decode=requests))
        for request in requests:
            request.computed_tokens += 1
        return logits


def extend(request: Request, token: int) -> None:
    request.output.append(token)
    request.output_tokens += 1


@torch.inference_mode()
def oracle_logits(oracle, ids: list[int]) -> torch.Tensor:
    return oracle(torch.tensor([ids])).logits[0]


def assert_agrees(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("chunk", [1000, 64, 13, 1])
def test_prefill_logits_agree_whatever_the_chunk(pair, chunk):
    """A prompt of 131 tokens, whole or in chunks that do not fit the blocks, ends in the oracle's logits."""
    oracle, model = pair
    prompt = prompt_of(131, 1)
    bench = Bench(model)
    assert_agrees(bench.prefill(bench.admit(prompt), chunk), oracle_logits(oracle, prompt)[-1])


def test_long_prompt_cut_into_pieces_agrees(pair):
    """A single chunk beyond the attention piece of 512 queries is cut without changing the logits."""
    oracle, model = pair
    prompt = prompt_of(700, 2)
    bench = Bench(model)
    assert_agrees(bench.prefill(bench.admit(prompt), 1000), oracle_logits(oracle, prompt)[-1])


def test_decode_logits_agree_in_a_mixed_batch(pair):
    """Sequences of 5 to 400 tokens, in several buckets, decode together as each would alone."""
    oracle, model = pair
    bench = Bench(model)
    requests = [bench.admit(prompt_of(length, length), room=8) for length in (5, 400, 37, 90, 8)]
    for request in requests:
        extend(request, int(bench.prefill(request, 50).argmax()))
    for _ in range(4):
        ours = bench.decode(requests)
        for request, row in zip(requests, ours, strict=True):
            assert_agrees(row, oracle_logits(oracle, request.prompt + request.output)[-1])
            extend(request, int(row.argmax()))


def test_decode_and_prefill_share_a_step(pair):
    """A step with decodes, a completing and an unfinished chunk returns ids for the former two, in plan order."""
    oracle, model = pair
    bench = Bench(model)
    running = [bench.admit(prompt_of(length, length), room=8) for length in (300, 20)]
    for request in running:
        extend(request, int(bench.prefill(request, 500).argmax()))
    late, long = bench.admit(prompt_of(50, 3)), bench.admit(prompt_of(90, 4))
    ids, _ = bench.runner.run(StepPlan(decode=running, prefill=[(long, 30), (late, 50)]))
    expected = [int(oracle_logits(oracle, r.prompt + r.output)[-1].argmax()) for r in (*running, late)]
    assert ids == expected


@pytest.mark.parametrize("chunk", [1000, 29])
def test_reused_prefix_blocks_agree(pair, chunk):
    """A second request that shares the first one's full blocks computes only its own tail, and agrees."""
    oracle, model = pair
    bench = Bench(model)
    prefix = prompt_of(10 * BLOCK_TOKENS, 7)
    first = bench.admit(prefix + prompt_of(30, 8))
    bench.prefill(first, chunk)
    prompt = prefix + prompt_of(41, 9)
    second = bench.admit(prompt, shared=first.blocks[:10])
    assert second.computed_tokens == len(prefix)
    assert_agrees(bench.prefill(second, chunk), oracle_logits(oracle, prompt)[-1])


def test_recomputation_after_a_preemption_agrees(pair):
    """A request that lost its blocks is recomputed from prompt and output in other blocks, and goes on unchanged."""
    oracle, model = pair
    bench = Bench(model)
    request = bench.admit(prompt_of(60, 10), room=40)
    extend(request, int(bench.prefill(request, 25).argmax()))
    for _ in range(20):
        extend(request, int(bench.decode([request])[0].argmax()))
    request.blocks = [bench.free.pop() for _ in range(12)]
    request.computed_tokens = 0
    assert_agrees(bench.prefill(request, 25), oracle_logits(oracle, request.prompt + request.output)[-1])


@pytest.fixture(scope="module")
def greedy(pair) -> list[int]:
    """200 greedy tokens of the oracle's own generation loop."""
    prompt = torch.tensor([prompt_of(45, 12)])
    options = {"max_new_tokens": 200, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return pair[0].generate(prompt, attention_mask=torch.ones_like(prompt), **options)[0, 45:].tolist()


@pytest.mark.parametrize("chunk", [1000, 17], ids=["whole", "chunked"])
@pytest.mark.parametrize("reuse", [False, True], ids=["cold", "prefix reused"])
def test_two_hundred_greedy_tokens_are_equal(pair, greedy, chunk, reuse):
    """200 greedy tokens equal those of the oracle's own generation loop, beside a neighbour that decodes too."""
    _, model = pair
    bench = Bench(model)
    prompt = prompt_of(45, 12)
    neighbour = bench.admit(prompt[:40] + prompt_of(70, 13), room=201)
    extend(neighbour, int(bench.prefill(neighbour, chunk).argmax()))
    request = bench.admit(prompt, room=201, shared=neighbour.blocks[:5] if reuse else None)
    extend(request, int(bench.prefill(request, chunk).argmax()))
    while request.output_tokens < 200:
        ids, _ = bench.runner.run(StepPlan(decode=[neighbour, request]))
        for each, token in zip((neighbour, request), ids, strict=True):
            each.computed_tokens += 1
            extend(each, token)
    assert request.output == greedy
