"""How the next token is chosen from logits: greedy, temperature, top-p; reproducible by seed.

The random number of a token depends on the request's seed and the token's index in the output only, never on who
else is in the batch: a request says the same alone, in a crowd and after a preemption.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch is heavy, and a server with a modelled device does without it
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a client asked for. `temperature` 0 is greedy; `top_p` is the kept probability mass, in (0, 1]."""

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0


GREEDY = Sampling(temperature=0.0)
# Sorting a whole vocabulary takes as long as computing its logits; a nucleus nearly always lies within so many tokens.
_LIKELY_TOKENS = 256


def uniform(seed: int, index: int) -> float:
    """The random number in [0, 1) for output token `index` of a request with `seed`."""
    return random.Random(f"{seed}:{index}").random()


def choose(logits: Tensor, wishes: list[Sampling], indexes: list[int]) -> list[int]:
    """Token ids, one per row of `logits` [rows, vocab]; `indexes` are the rows' output positions.

    One batched pass whatever the mix of wishes; rows that keep the whole mass skip the sort.
    """
    import torch

    greedy: list[int] = logits.argmax(dim=-1).tolist()
    rows = [row for row, wish in enumerate(wishes) if wish.temperature > 0]
    if not rows:
        return greedy
    numbers = [uniform(wishes[row].seed, indexes[row]) for row in rows]
    drawn = _draw(
        logits[torch.tensor(rows, device=logits.device)],
        torch.tensor([wishes[row].temperature for row in rows], device=logits.device),
        torch.tensor([wishes[row].top_p for row in rows], device=logits.device),
        torch.tensor(numbers, dtype=torch.float32, device=logits.device),
    )
    for row, token in zip(rows, drawn, strict=True):
        greedy[row] = token
    return greedy


def _draw(logits: Tensor, temperature: Tensor, top_p: Tensor, numbers: Tensor) -> list[int]:
    """Inverse-transform sampling, from all tokens or from the smallest set whose mass reaches `top_p`.

    Which way a row takes depends on that row alone, so that its token does not depend on its company.
    """
    import torch

    probabilities = torch.softmax(logits / temperature[:, None], dim=-1)
    chosen = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    whole = top_p >= 1
    if whole.any():
        chosen[whole] = _invert(probabilities[whole], numbers[whole])
    if not whole.all():
        cut = ~whole
        chosen[cut] = _draw_likely(probabilities[cut], top_p[cut], numbers[cut])
    tokens: list[int] = chosen.tolist()
    return tokens


def _draw_likely(probabilities: Tensor, top_p: Tensor, numbers: Tensor) -> Tensor:
    """From the smallest set that reaches `top_p`: it is looked for among the likeliest tokens, then among all."""
    import torch

    likely, tokens = probabilities.topk(min(_LIKELY_TOKENS, probabilities.shape[-1]), dim=-1)
    reached = likely.sum(dim=-1) >= top_p
    if not reached.all():
        all_sorted = probabilities[~reached].sort(dim=-1, descending=True, stable=True)
        rest = _nucleus(*all_sorted, top_p[~reached], numbers[~reached])
        chosen = torch.empty(len(numbers), dtype=torch.int64, device=numbers.device)
        chosen[~reached] = rest
        if reached.any():
            chosen[reached] = _nucleus(likely[reached], tokens[reached], top_p[reached], numbers[reached])
        return chosen
    return _nucleus(likely, tokens, top_p, numbers)


def _nucleus(probabilities: Tensor, tokens: Tensor, top_p: Tensor, numbers: Tensor) -> Tensor:
    """A token of each row's nucleus; `probabilities` fall along the row, `tokens` are whose they are."""
    mass = probabilities.cumsum(dim=-1)
    # A token is kept while the mass before it is below top_p: the first one always is.
    kept = probabilities.masked_fill(mass - probabilities >= top_p[:, None], 0.0)
    return tokens.gather(1, _invert(kept, numbers)[:, None])[:, 0]


def _invert(weights: Tensor, numbers: Tensor) -> Tensor:
    """The place in each row at which its running sum passes that share of the whole; never one of weight 0."""
    import torch

    sums = weights.cumsum(dim=-1)
    whole = sums[:, -1:]
    picked = torch.searchsorted(sums, numbers[:, None] * whole, right=True)
    last = (sums < whole).sum(dim=-1, keepdim=True)  # rounding may carry the search past the last weight
    return torch.minimum(picked, last)[:, 0]
