"""Checkpoints of every supported family compute what `transformers` computes: logits, and 200 greedy tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
import transformers

from engine_shim.clock import VirtualClock
from engine_shim.model.weights import load_folder
from engine_shim.request import Request
from engine_shim.runners.torch.runner import TorchRunner
from engine_shim.step import StepPlan

VOCAB = 89
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
FAMILIES = {
    "llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, linear rope": ("Llama", {"rope_parameters": LINEAR}),
    "mistral without a window": ("Mistral", {"sliding_window": None, "head_dim": 16}),
    "qwen2": ("Qwen2", {}),
    "qwen2, tied, yarn rope": ("Qwen2", {"tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen3": ("Qwen3", {"head_dim": 24}),
    "qwen3 with biases, tied": ("Qwen3", {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}),
}


@pytest.fixture(scope="module", params=FAMILIES.values(), ids=FAMILIES.keys())
def pair(request, tmp_path_factory):
    """A random checkpoint, sharded, in the oracle and through our loader. No weight is left at a neutral 0 or 1."""
    torch.set_num_threads(1)
    torch.manual_seed(3)
    family, changes = request.param
    config = getattr(transformers, f"{family}Config")(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=112, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.2,
        **({"tie_word_embeddings": False} | changes),
    )  # fmt: skip
    oracle = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in oracle.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    folder = tmp_path_factory.mktemp("checkpoint")
    oracle.save_pretrained(folder, max_shard_size="100KB")
    return oracle, load_folder(folder), folder


def prompt_of(length: int) -> list[int]:
    rng = random.Random(length)
    return [rng.randrange(VOCAB) for _ in range(length)]


class Alone:
    """One request on a runner of its own, with blocks out of order."""

    def __init__(self, model, prompt: list[int]) -> None:
        self.runner = TorchRunner(model, 64, 8, VirtualClock())
        self.request = Request("r", len(prompt), 300, 0.0, 300, prompt=prompt)
        self.request.blocks = list(range(63, -1, -1))

    def prefill(self, chunk: int) -> torch.Tensor:
        """The logits after the prompt, computed in chunks."""
        request = self.request
        while True:
            tokens = min(chunk, request.total_tokens - request.computed_tokens)
            logits = self.runner.logits(StepPlan(prefill=[(request, tokens)]))
            request.computed_tokens += tokens
            if request.computed_tokens == request.total_tokens:
                return logits[0]

    def append(self, token: int) -> None:
        self.request.output.append(token)
        self.request.output_tokens += 1

    def decode(self) -> int:
        ids, _ = self.runner.run(StepPlan(decode=[self.request]))
        self.request.computed_tokens += 1
        return ids[0]


def test_the_checkpoint_is_sharded(pair):
    """The index and at least two files: else the test below would not read what it is meant to read."""
    folder: Path = pair[2]
    files = set(json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"].values())
    assert len(files) >= 2


@pytest.mark.parametrize("length", [7, 150])
def test_logits_agree(pair, length):
    """In chunks, within 1e-4 of the oracle's."""
    oracle, model, _ = pair
    prompt = prompt_of(length)
    with torch.inference_mode():
        theirs = oracle(torch.tensor([prompt])).logits[0, -1]
    torch.testing.assert_close(Alone(model, prompt).prefill(40), theirs, rtol=1e-4, atol=1e-4)


def test_two_hundred_greedy_tokens_are_equal(pair):
    """As the oracle's own generation loop says them."""
    oracle, model, _ = pair
    prompt = prompt_of(30)
    ids = torch.tensor([prompt])
    options = {"max_new_tokens": 200, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    theirs = oracle.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, 30:].tolist()
    ours = Alone(model, prompt)
    ours.append(int(ours.prefill(1000).argmax()))
    while ours.request.output_tokens < 200:
        ours.append(ours.decode())
    assert ours.request.output == theirs
