"""Speculative decoding: the same tokens as without it, exact books, and telemetry that says what drafts were worth."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_shim.clock import VirtualClock
from engine_shim.engine.engine import Engine
from engine_shim.engine.ngram import SIZES, NgramIndex
from engine_shim.engine.speculative import accepted_of, modelled_acceptance
from engine_shim.model.config import LlamaConfig
from engine_shim.model.sampling import Sampling
from engine_shim.model.shapes import SHAPES
from engine_shim.model.weights import seeded
from engine_shim.request import Request, Stage
from engine_shim.runners.torch.runner import TorchRunner
from engine_shim.settings.engine import EngineSettings
from engine_shim.telemetry.compute_page import speculation_families
from tests.shim.playing import Transcript, make_engine, played, request, run_all, steady

VOCAB = SHAPES["tiny"].vocab
CONFIG = LlamaConfig(VOCAB, 32, 64, 2, 4, 2, 8)


@pytest.fixture(scope="module")
def model():
    torch.set_num_threads(1)
    return seeded(CONFIG, 4)


def torch_engine(model, blocks: int = 60, **changes) -> Engine:
    given_settings = {"kv_pool_tokens": blocks * 4, "block_tokens": 4, "max_num_seqs": 6, "max_step_tokens": 64}
    checked = EngineSettings.from_table(given_settings | changes)
    return Engine(checked, blocks, TorchRunner(model, blocks, 4, VirtualClock()), VirtualClock(1000.0), Transcript())


def load(seed: int, sampled: bool) -> list[Request]:
    """Eight requests with prompts that repeat themselves, some of them sampled."""
    rng, requests = random.Random(seed), []
    for index in range(8):
        phrase = [rng.randrange(VOCAB) for _ in range(rng.randint(2, 6))]
        wish = Sampling(temperature=0.7, top_p=0.9, seed=index) if sampled and index % 2 else None
        requests.append(request(f"r{index}", phrase * rng.randint(1, 4), rng.randint(20, 40), sampling=wish))
    return requests


def outputs(engine: Engine, requests: list[Request]) -> list[list[int]]:
    for each in requests:
        engine.add(each)
    run_all(engine)
    return [each.output for each in requests]


@pytest.mark.parametrize("noise", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("tokens", [1, 3, 9])
def test_tokens_are_those_without_speculation(model, tokens, noise):
    """Greedy and sampled requests say the same, whatever the drafts are worth; with a small pool and preemptions too."""
    plain = outputs(torch_engine(model, blocks=18), load(tokens, sampled=True))
    changes = {"speculative": "ngram", "speculative_tokens": tokens, "speculative_noise": noise}
    engine = torch_engine(model, blocks=18, **changes)
    assert outputs(engine, load(tokens, sampled=True)) == plain
    assert engine.counters.preempted > 0
    assert engine.scheduler.speculation.counts.drafts > 0


def test_drafts_save_steps_and_noise_takes_the_gain_away(model):
    """On text that repeats itself, fewer steps make the same tokens; drafts of noise are all turned down."""

    def steps(**changes) -> tuple[float, float]:
        engine = torch_engine(model, **changes)
        outputs(engine, load(2, sampled=False))
        counts = engine.scheduler.speculation.counts
        return engine.telemetry.records[-1][0], counts.accepted_tokens / max(counts.draft_tokens, 1)

    plain, _ = steps()
    fewer, accepted_ratio = steps(speculative="ngram")
    wrong, wrong_ratio = steps(speculative="ngram", speculative_noise=1.0)
    assert fewer < 0.75 * plain
    assert accepted_ratio > 0.5
    assert wrong_ratio < 0.1
    assert wrong > 0.9 * plain


class Stopper:
    """A listener that ends its request at its first token of a kind, as an end token does."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.heard: list[int] = []

    def on_token(self, request: Request, token_id: int) -> None:
        self.heard.append(token_id)
        if token_id == self.end:
            request.stop_after = request.output_tokens

    def on_finish(self, request: Request) -> None:
        pass


def test_an_end_token_within_a_draft_ends_the_output(model):
    """What was accepted beyond it is never heard of, and its KV and blocks are gone with the request."""
    prompt = [1, 2, 3, 4] * 4
    [plain] = outputs(torch_engine(model), [request("r", prompt, 40)])
    end = plain[-1]
    expected = plain[: plain.index(end) + 1]
    engine = torch_engine(model, speculative="ngram", speculative_tokens=8)
    stopper = Stopper(end)
    one = request("r", prompt, 40, listener=stopper)
    outputs(engine, [one])
    assert (one.output, stopper.heard) == (expected, expected)
    assert engine.pool.used_blocks == 0
    assert engine.scheduler.written_tokens == 0


@given(
    seed=st.integers(0, 10_000),
    tokens=st.integers(1, 12),
    reserve=st.sampled_from(["none", "prompt", "max_tokens"]),
    blocks=st.integers(14, 60),
    acceptance=st.sampled_from([0.0, 0.5, 1.0]),
)
@settings(max_examples=60, deadline=None)
def test_between_steps_the_books_are_those_of_plain_decoding(seed, tokens, reserve, blocks, acceptance):
    """Blocks for the tokens computed and none more, sums that add up, and promises that are kept, after every step."""
    engine = make_engine(
        block_tokens=4, kv_pool_tokens=blocks * 4, reserve=reserve, max_num_seqs=8, max_step_tokens=128,
        speculative="ngram", speculative_tokens=tokens, speculative_acceptance=acceptance, watermark_ratio=0.0,
    )  # fmt: skip
    rng, requests = random.Random(seed), []
    for index in range(12):
        output = rng.randint(1, 24)
        requests.append(
            request(f"r{index}", rng.randint(1, 28), output, max_tokens=min(output + rng.randint(0, 8), 28))
        )
        engine.add(requests[-1])
    for _ in range(3000):
        busy = engine.step()
        check_books(engine)
        if not busy and not engine.scheduler.waiting:
            break
    assert all(each.output_tokens == each.stop_after and each.stage is Stage.FINISHED for each in requests)
    assert engine.counters.generated_tokens == sum(each.output_tokens for each in requests)


def check_books(engine: Engine) -> None:
    books, pool = engine.scheduler, engine.pool
    for each in books.decoding:
        assert each.computed_tokens == each.total_tokens - 1
        assert len(each.blocks) == pool.blocks_for(each.computed_tokens)
    assert books.written_tokens == sum(each.computed_tokens for each in books.running)
    assert books.context_tokens == sum(each.computed_tokens for each in books.decoding)
    assert books.admission.reserved_blocks == sum(books.admission.outstanding_blocks(each) for each in books.running)
    assert books.admission.available_blocks >= 0
    assert pool.held_slots_tokens == sum(len(each.blocks) for each in books.running) * pool.block_tokens


@given(
    prompt=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    output=st.lists(st.integers(0, 3), max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=3),
)
@settings(max_examples=200, deadline=None)
def test_the_index_finds_what_a_search_finds(prompt, output, cuts):
    """However the output arrives: what followed the latest earlier occurrence of the longest known suffix."""
    index = NgramIndex(prompt)
    for cut in sorted(cuts):
        index.extend(output[:cut])
    index.extend(output)
    assert index.following(5) == searched(prompt + output, 5)


def searched(ids: list[int], tokens: int) -> list[int]:
    for size in SIZES:
        for end in range(len(ids) - 1, size - 1, -1):
            if ids[end - size : end] == ids[len(ids) - size :]:
                return ids[end : end + tokens]
    return []


@pytest.mark.parametrize(
    ("chosen", "draft", "kept"),
    [([5, 6, 7], [5, 6], [6, 7]), ([5, 6, 7], [5, 9], [6]), ([5, 6, 7], [9, 6], []), ([5], [], [])],
)
def test_a_draft_counts_up_to_its_first_error(chosen, draft, kept):
    """The model's own choice stands on a true context as long as the draft agreed with it."""
    assert accepted_of(chosen, draft) == kept


@pytest.mark.parametrize(("own", "noise", "chance"), [(float("nan"), 0.0, 0.7), (0.4, 0.0, 0.4), (0.8, 0.5, 0.4)])
def test_modelled_acceptance_has_the_chance_that_was_set(own, noise, chance):
    """Over 20,000 steps each position's frequency is the chance to the power of its place, within 5 standard errors."""
    wanted = EngineSettings(speculative_noise=noise)
    one, counts = request("r", 10, 10, draft_acceptance=own), [0] * 4
    steps = 20_000
    for step in range(steps):
        one.output_tokens = step
        accepted = modelled_acceptance(one, 4, wanted)
        for position in range(accepted):
            counts[position] += 1
    for position, count in enumerate(counts):
        expected = chance ** (position + 1)
        assert abs(count / steps - expected) < 5 * (expected * (1 - expected) / steps) ** 0.5


def test_a_modelled_engine_pays_for_drafts_and_gains_by_what_is_accepted():
    """At a large batch, good drafts cut the time per token and hopeless ones lengthen it."""

    def per_token_s(**changes) -> float:
        engine = make_engine(max_num_seqs=128, kv_pool_tokens=160_000, **changes)
        transcript = played(engine, steady(1, 60.0, 5.0, (200, 300), (100, 200)), 60.0)
        finished = [each for each in transcript.done if each.finish_reason == "length"]
        assert len(finished) > 250
        return sum((r.last_token_at - r.first_token_at) / (r.output_tokens - 1) for r in finished) / len(finished)

    plain = per_token_s()
    assert per_token_s(speculative="ngram", speculative_acceptance=0.9) < 0.6 * plain
    assert per_token_s(speculative="ngram", speculative_acceptance=0.0) > 1.02 * plain


def test_the_page_and_the_records_say_what_drafts_were_worth():
    """Drafts, tokens and acceptance by position add up; records carry the drafts planned and the totals so far."""
    engine = make_engine(speculative="ngram", speculative_tokens=3, speculative_acceptance=0.5)
    counts = engine.scheduler.speculation.counts
    transcript = played(engine, steady(3, 5.0, 4.0, (50, 60), (40, 50)), 10.0)
    assert counts.accepted_tokens == sum(counts.accepted_at) > 0
    assert counts.accepted_at == sorted(counts.accepted_at, reverse=True)
    text = "\n".join(line for family in speculation_families(lambda: counts) for line in family.render())
    assert f"shim:spec_decode_num_drafts_total {counts.drafts}" in text
    assert f'shim:spec_decode_num_accepted_tokens_per_pos_total{{position="0"}} {counts.accepted_at[0]}' in text
    columns = transcript.columns
    assert columns["draft_tokens"].sum() == counts.draft_tokens == columns["drafted_tokens_total"][-1]
    assert (columns["draft_tokens"] <= 3 * columns["decode_tokens"]).all()
    assert (columns["kv_slots_unused"] >= 0).all()
    assert columns["accepted_tokens_total"][-1] == counts.accepted_tokens


BAD = {
    "an unknown kind": ({"speculative": "medusa"}, "speculative must be one of none, ngram"),
    "no tokens": ({"speculative_tokens": 0}, "speculative_tokens must be 1 to 32"),
    "more noise than drafts": ({"speculative_noise": 1.5}, "speculative_noise must be between"),
    "a static batch": ({"speculative": "ngram", "batching": "static"}, "batching"),
    "a step too small": (
        {"speculative": "ngram", "max_num_seqs": 64, "max_step_tokens": 128}, "raise it or lower speculative_tokens"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_settings_name_the_key(case):
    """And say what to change."""
    table, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        EngineSettings.from_table(table)
