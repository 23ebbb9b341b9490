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


def uniform(seed: int, index: int) -> float:
    """The random number in [0, 1) for output token `index` of a request with `seed`."""
    return random.Random(f"{seed}:{index}").random()


def choose(logits: Tensor, wishes: list[Sampling], indexes: list[int]) -> list[int]:
    """Token ids, one per row of `logits` [rows, vocab]; `indexes` are the rows' output positions.

    One batched pass whatever the mix of wishes; a batch without a random row skips the sort.
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
    """Inverse-transform sampling from the smallest set of tokens whose mass reaches `top_p`."""
    import torch

    softened = torch.softmax(logits / temperature[:, None], dim=-1)
    probabilities, tokens = softened.sort(dim=-1, descending=True, stable=True)
    mass = probabilities.cumsum(dim=-1)
    # A token is kept while the mass before it is below top_p: the first one always is.
    kept = probabilities.masked_fill(mass - probabilities >= top_p[:, None], 0.0)
    kept_mass = kept.cumsum(dim=-1)
    picked = torch.searchsorted(kept_mass, (numbers * kept_mass[:, -1])[:, None], right=True)
    last_kept = (kept > 0).sum(dim=-1, keepdim=True) - 1  # rounding may carry the search past the last kept token
    chosen: list[int] = tokens.gather(1, torch.minimum(picked, last_kept))[:, 0].tolist()
    return chosen
