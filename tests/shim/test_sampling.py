"""Sampling: greedy, top-p and reproducibility by seed, on real logits tensors."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_shim.model.sampling import GREEDY, Sampling, choose, uniform


def logits_of(rows: int, seed: int, vocab: int = 50) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def test_greedy_rows_take_the_largest_logit_beside_random_ones():
    """Greedy and random wishes share a batch without touching each other."""
    logits = logits_of(4, 1)
    chosen = choose(logits, [GREEDY, Sampling(seed=3), GREEDY, Sampling(top_p=0.2)], [0, 0, 5, 1])
    best = logits.argmax(-1).tolist()
    assert (chosen[0], chosen[2]) == (best[0], best[2])


@given(seed=st.integers(-(2**63), 2**63 - 1), index=st.integers(0, 100), neighbours=st.integers(0, 5))
@settings(max_examples=50, deadline=None)
def test_a_token_depends_on_seed_and_index_only(seed, index, neighbours):
    """The same row draws the same token alone and in any company."""
    logits, wish = logits_of(neighbours + 1, 7), Sampling(seed=seed)
    company = [Sampling(seed=n) for n in range(neighbours)]
    alone = choose(logits[-1:], [wish], [index])[0]
    assert choose(logits, [*company, wish], [0] * neighbours + [index])[-1] == alone


@given(top_p=st.floats(0.01, 1.0), seed=st.integers(0, 1000))
@settings(max_examples=80, deadline=None)
def test_top_p_stays_in_the_smallest_set_that_reaches_the_mass(top_p, seed):
    """No token outside the nucleus is ever drawn; its size is computed here in plain Python."""
    logits = logits_of(1, seed)
    ranked = sorted(enumerate(torch.softmax(logits[0], -1).tolist()), key=lambda pair: -pair[1])
    nucleus, mass = set(), 0.0
    for token, probability in ranked:
        if mass >= top_p + 1e-6:
            break
        nucleus.add(token)
        mass += probability
    assert {choose(logits, [Sampling(top_p=top_p, seed=s)], [0])[0] for s in range(10)} <= nucleus


def test_frequencies_follow_the_softened_probabilities():
    """20,000 draws at temperature 0.5 match softmax(logits / 0.5) within five standard errors for every token."""
    logits, count = torch.tensor([[0.0, 0.5, 1.0, -1.0]]), 20_000
    drawn = choose(logits.expand(count, -1), [Sampling(temperature=0.5, seed=9)] * count, list(range(count)))
    for token, probability in enumerate(torch.softmax(logits[0] / 0.5, -1).tolist()):
        error = (probability * (1 - probability) / count) ** 0.5
        assert abs(drawn.count(token) / count - probability) < 5 * error


def test_tiny_temperature_is_finite_and_greedy():
    """A temperature near zero neither overflows nor leaves the best token."""
    logits = logits_of(3, 4)
    assert choose(logits, [Sampling(temperature=1e-6)] * 3, [0, 1, 2]) == logits.argmax(-1).tolist()


def test_random_numbers_lie_in_the_unit_interval():
    """Also for negative seeds."""
    assert all(0 <= uniform(seed, index) < 1 for seed in (-(2**63), -1, 0, 5) for index in range(50))


@given(seed=st.integers(0, 1000), top_p=st.sampled_from([0.3, 0.9, 0.999, 1.0]))
@settings(max_examples=30, deadline=None)
def test_wide_and_narrow_nuclei_share_a_batch(seed, top_p):
    """A nucleus of over 256 tokens and one of a few: each row draws what it draws alone, and from its own nucleus."""
    flat, peaked = logits_of(1, seed, 900) * 0.01, logits_of(1, seed + 1, 900) * 3
    logits, wish = torch.cat((flat, peaked, flat)), Sampling(top_p=top_p, seed=seed)
    wishes, indexes = [wish, wish, Sampling(seed=seed)], [1, 2, 3]
    alone = [choose(logits[row : row + 1], [wishes[row]], [indexes[row]])[0] for row in range(3)]
    together = choose(logits, wishes, indexes)
    assert together == alone
    for row in range(2):
        ranked = torch.softmax(logits[row], -1).sort(descending=True)
        size = int((ranked.values.cumsum(-1) < top_p - 1e-6).sum()) + 2
        assert together[row] in ranked.indices[:size].tolist()
