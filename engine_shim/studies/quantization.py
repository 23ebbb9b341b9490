"""What weights in fewer bits cost and bring on the torch runner: memory, accuracy on a fixed text, and step times.

    python -m engine_shim.studies.quantization [FOLDER]

Accuracy is against float32 weights: root mean square of the difference of logits, as a share of their standard
deviation; how often the likeliest token is the same; and the perplexity of the text. Without FOLDER (a checkpoint as
`serve --model` takes it) the model is the 100m shape with random layers, and a projection onto the vocabulary that is
fitted to the text by ridge regression on the last hidden states: so that its perplexity is far from guessing and shows
what damaged hidden states do.

Times are of decode steps with 1 and with 16 requests of 128 tokens each, in CPU time of one thread, which is what an
idle machine would show on the wall: the fastest of several rounds in which all paths take turns. The kernels named are
those that ran.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ..calibrate.measure import CpuClock
from ..model.config import LlamaConfig, config_of
from ..model.llama import Llama, LlamaWeights, Storage
from ..model.quantized.stored import DENSE_KERNEL, KERNELS
from ..model.shapes import SHAPES
from ..model.tokens import CharTokenizer, FolderTokenizer
from ..model.weights import load_folder, seeded_weights
from ..request import Request
from ..runners.torch.heap import keep_large_blocks
from ..runners.torch.runner import TorchRunner
from ..step import StepPlan
from .kv_precision import TEXT

BLOCK_TOKENS = 16
CONTEXT_TOKENS = 128
BATCHES = (1, 16)
ROUNDS = 15
PATHS = (Storage("fp32"), Storage("bf16"), *(Storage(name, slow) for name in KERNELS for slow in (False, True)))
_RIDGE = 1e-4  # of the largest eigenvalue: enough to keep the projection tame, too little to spoil the fit
_CONFIDENCE = 32.0  # the logit that the fit aims at for the right token; the others' is 0


@dataclass(frozen=True, slots=True)
class Row:
    """One way of storing weights. Distances are to the first row's logits; seconds by batch size."""

    weights: str
    kernel: str
    nbytes: int
    logit_distance: float
    same_choice: float
    perplexity: float
    step_s: tuple[float, ...]


def measure(build: Callable[[Storage], Llama], ids: list[int], paths: tuple[Storage, ...] = PATHS) -> list[Row]:
    """All paths on the same text; the first is what the others are compared with."""
    models = [build(storage) for storage in paths]
    exact = _logits(models[0], ids)
    times = _step_seconds(models)
    rows = []
    for storage, model, step_s in zip(paths, models, times, strict=True):
        model.calls.restarted()
        logits = _logits(model, ids)
        distance = (logits - exact).pow(2).mean().sqrt() / exact.std()
        same = (logits.argmax(-1) == exact.argmax(-1)).float().mean()
        surprise = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]))
        rows.append(
            Row(
                storage.weights, _kernel(model), model.linear_bytes, float(distance), float(same),
                float(surprise.exp()), step_s,
            )
        )  # fmt: skip
    return rows


def _kernel(model: Llama) -> str:
    """The kernel that most of the products took."""
    return model.calls.by_kernel.most_common(1)[0][0] if model.calls.by_kernel else DENSE_KERNEL


def _logits(model: Llama, ids: list[int]) -> Tensor:
    """Logits [tokens − 1, vocab] after each token but the last: as if all after the first were a draft to check."""
    blocks = -(-len(ids) // BLOCK_TOKENS)
    runner = TorchRunner(model, blocks, BLOCK_TOKENS, CpuClock())
    text = Request("text", 1, len(ids), 0.0, len(ids), prompt=ids[:1], blocks=list(range(blocks)))
    return runner.logits(StepPlan(decode=[text], drafts={text: ids[1:-1]})).cpu()


def _step_seconds(models: list[Llama]) -> list[tuple[float, ...]]:
    """The fastest decode step of each model, by batch size."""
    fastest = [[float("inf")] * len(BATCHES) for _ in models]
    blocks = -(-CONTEXT_TOKENS // BLOCK_TOKENS)
    runners = [TorchRunner(model, blocks * max(BATCHES), BLOCK_TOKENS, CpuClock()) for model in models]
    for _ in range(ROUNDS):
        for index, runner in enumerate(runners):
            for place, batch in enumerate(BATCHES):
                requests = [
                    Request(str(row), CONTEXT_TOKENS, 9, 0.0, 9, prompt=list(range(CONTEXT_TOKENS)),
                            blocks=list(range(row * blocks, (row + 1) * blocks)))
                    for row in range(batch)
                ]  # fmt: skip
                _, seconds = runner.run(StepPlan(decode=requests))
                fastest[index][place] = min(fastest[index][place], seconds)
    return [tuple(times) for times in fastest]


def fitted_weights(config: LlamaConfig, ids: list[int]) -> LlamaWeights:
    """Seeded weights whose projection onto the vocabulary knows the text."""
    untied = replace(config, tied_embeddings=False)
    identity = seeded_weights(untied, 0)
    identity.head = torch.eye(config.hidden_size)
    hidden = _logits(Llama(untied, identity), ids)
    wanted = torch.nn.functional.one_hot(torch.tensor(ids[1:]), config.vocab_size).float() * _CONFIDENCE
    gram = hidden.T @ hidden
    gram += torch.eye(len(gram)) * (_RIDGE * float(torch.linalg.eigvalsh(gram)[-1]))
    weights = seeded_weights(untied, 0)
    weights.head = torch.linalg.solve(gram, hidden.T @ wanted).T.contiguous()
    return weights


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    heads = ["weights", "kernel that ran", "MB", "logit distance", "same choice", "perplexity"]
    heads += [f"step of {batch}, ms" for batch in BATCHES]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for row in rows:
        cells = [
            row.weights, row.kernel, f"{row.nbytes / 1e6:.0f}", f"{row.logit_distance:.2%}", f"{row.same_choice:.1%}",
            f"{row.perplexity:.3f}", *(f"{seconds * 1e3:.1f}" for seconds in row.step_s),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(folder: str | None) -> None:
    """Print the table."""
    keep_large_blocks()
    torch.set_num_threads(1)
    if folder is not None:
        path = Path(folder)
        ids = FolderTokenizer(path / "tokenizer.json").encode(TEXT)
        print(table(measure(lambda storage: load_folder(path, storage=storage), ids)))
        return
    config = replace(config_of(SHAPES["100m"]), tied_embeddings=False)
    ids = CharTokenizer().encode(TEXT)
    head = fitted_weights(config, ids).head

    def build(storage: Storage) -> Llama:
        weights = seeded_weights(config, 0)
        weights.head = head
        return Llama(config, weights, storage)

    print(table(measure(build, ids)))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
