"""What KV in fewer bits costs: memory and accuracy on a fixed text, on the torch runner.

    python -m engine_shim.studies.kv_precision [FOLDER]

The text is fed token by token, so that every token attends to keys and values that were stored and read again. Against
a cache in the weights' own type (float32): root mean square of the difference of logits, as a share of their standard
deviation; how often the likeliest token is the same; and the perplexity of the text. Without FOLDER (a checkpoint as
`serve --model` takes it) the model has random weights: then its perplexity is that of guessing, and its distances are
those of vectors without outliers, the easy case.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from ..clock import VirtualClock
from ..model.config import config_of
from ..model.kv_cache import KV_TYPES
from ..model.llama import Llama
from ..model.shapes import SHAPES
from ..model.tokens import CharTokenizer, FolderTokenizer, Tokenizer
from ..model.weights import load_folder, seeded
from ..request import Request
from ..runners.torch.runner import TorchRunner
from ..step import StepPlan

BLOCK_TOKENS = 16
TEXT = (
    "An inference server holds the keys and values of every token that it may still attend to. Each new token reads all "
    "of them once, so the memory that they fill limits how many requests run together, and the bytes that are read limit "
    "how fast each of them goes. Storing them in eight bits instead of sixteen doubles the room and halves the reading; "
    "what it costs is a little noise in every attention score, which is why the cost must be measured and not assumed."
)


@dataclass(frozen=True, slots=True)
class Row:
    """One type of cache. Distances are relative to a cache in the weights' type."""

    kv_type: str
    bytes_per_token: float
    logit_distance: float
    same_choice: float
    perplexity: float


def measure(model: Llama, ids: list[int], kv_types: tuple[str, ...]) -> list[Row]:
    """All types on the same text; the first one is what the others are compared with."""
    exact, _ = _logits(model, ids, kv_types[0])
    rows = []
    for kv_type in kv_types:
        logits, kv_bytes = _logits(model, ids, kv_type)
        distance = (logits - exact).pow(2).mean().sqrt() / exact.std()
        same = (logits.argmax(-1) == exact.argmax(-1)).float().mean()
        surprise = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]))
        rows.append(Row(kv_type, kv_bytes, float(distance), float(same), float(surprise.exp())))
    return rows


def _logits(model: Llama, ids: list[int], kv_type: str) -> tuple[torch.Tensor, float]:
    """Logits [tokens − 1, vocab] after each token but the last, and the cache's bytes per token."""
    blocks = -(-len(ids) // BLOCK_TOKENS)
    runner = TorchRunner(model, blocks, BLOCK_TOKENS, VirtualClock(), kv_type)
    request = Request("text", 1, 1, 0.0, 1, prompt=ids[:1], blocks=list(range(blocks)))
    rows = []
    for token in ids[1:]:
        rows.append(runner.logits(StepPlan(prefill=[(request, 1)])))
        request.computed_tokens += 1
        request.prompt.append(token)
        request.prompt_tokens += 1
    return torch.cat(rows).cpu(), runner.kv_cache_bytes / (blocks * BLOCK_TOKENS)


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    lines = ["| KV type | bytes per token | logit distance | same choice | perplexity |", "|---|---|---|---|---|"]
    lines += [
        f"| {r.kv_type} | {r.bytes_per_token:.0f} | {r.logit_distance:.3%} | {r.same_choice:.1%} | {r.perplexity:.3f} |"
        for r in rows
    ]
    return "\n".join(lines)


def main(folder: str | None) -> None:
    """Print the table for a checkpoint, or for the tiny model with seeded weights."""
    torch.set_num_threads(1)
    tokenizer: Tokenizer
    if folder is None:
        model, tokenizer = seeded(config_of(SHAPES["tiny"]), 0, torch.float32, "cpu"), CharTokenizer(256)
    else:
        model, tokenizer = load_folder(Path(folder)), FolderTokenizer(Path(folder) / "tokenizer.json")
    kv_types = ("fp32", *(kind for kind in KV_TYPES if kind != "fp32"), "int8")
    print(table(measure(model, tokenizer.encode(TEXT), kv_types)))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
