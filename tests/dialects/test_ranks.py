"""Ranks, replicas and models of one page: who is counted, who is not, and under which number."""

import time

from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.sources.page.engine_page import EnginePage
from gpuwatch.sources.page.ranks import MAX_RANKS, RankNumbers, _distinct, _Places
from tests.dialects.reading_pages import captured, facts_of, flat, page_of, read


def running(label, *values):
    return page_of(*(f'vllm:num_requests_running{{engine="0",{label}="{name}"}} {n}' for n, name in enumerate(values)))


def test_small_integers_keep_their_number_and_names_get_one_that_stays():
    numbers = RankNumbers()
    assert numbers.number([(("engine", "3"),), (("engine", "1"),)]) == {(("engine", "3"),): 3, (("engine", "1"),): 1}
    a, b, c = ((("pod", name),) for name in "abc")
    assert numbers.number([b, c]) == {b: 0, c: 1}
    assert numbers.number([a, c]) == {a: 2, c: 1}, "who is known keeps the number, who comes gets a new one"


@given(st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, unique=True), min_size=1, max_size=6))
def test_a_number_never_changes_its_owner(pages):
    numbers, owner = RankNumbers(), {}
    for names in pages:
        for key, number in numbers.number([(("pod", name), ("engine", "0")) for name in names]).items():
            assert owner.setdefault(number, key) == key


def test_a_page_put_together_from_several_pods_is_several_ranks():
    found = read(running("pod", "vllm-a", "vllm-b"))
    assert {rank: signals["req_running"] for rank, signals in found.items()} == {0: 0, 1: 1}


def test_replicas_that_come_and_go_keep_their_numbers():
    page = EnginePage("e")
    page.read(running("ReplicaId", "a", "b"), 1.0)
    later = page.read(running("ReplicaId", "b", "c"), 2.0)
    assert {r: f["rank"].rpartition("=")[2] for r, f in facts_of(later).items()} == {1: "b", 2: "c"}


def test_more_ranks_than_anybody_has_are_cut_and_counted():
    page = EnginePage("e")
    report = page.read(running("pod", *(f"p{n}" for n in range(MAX_RANKS + 6))), 1.0)
    assert len(flat(report)) == MAX_RANKS
    assert report.dropped >= 6


def test_models_around_the_engine_are_no_ranks_and_two_engines_are_two():
    """Triton shows tokenizers and ensembles beside the model that the backend runs."""
    assert len(read(captured("triton-26.06-synthetic"))) == 1
    second = captured("triton-26.06-synthetic").replace(b'"tensorrt_llm"', b'"tensorrt_llm_draft"')
    both = captured("triton-26.06-synthetic") + b"\n".join(
        line for line in second.splitlines() if b"tensorrt_llm_draft" in line
    ) + b"\n"  # fmt: skip
    found = read(both)
    assert [found[r]["req_finished_total"] for r in sorted(found)] == [1500, 1500]


def test_a_series_without_the_label_belongs_to_the_lowest_rank():
    found = read(
        page_of(
            'vllm:num_requests_running{engine="2"} 5',
            'vllm:num_requests_running{engine="1"} 4',
            'vllm:admission_rejections_total{reason="queue_full"} 3',
        )
    )
    assert found[1]["req_rejected_total"] == 3
    assert "req_rejected_total" not in found[2]


def test_blocks_are_shared_by_the_engines_of_one_server_and_not_by_its_replicas():
    lines = [
        f'vllm:{name}{{engine="{e}",ReplicaId="{r}",num_gpu_blocks="2000",block_size="16"}} 1'
        for name in ("num_requests_running", "cache_config_info") for e in "01" for r in "ab"
    ]  # fmt: skip
    assert {signals["kv_total_blocks"] for signals in read(page_of(*lines)).values()} == {1000}


def test_replicas_that_are_replaced_for_months_are_still_read():
    """Each page names new replicas; the last is read like the first, what is remembered is bounded, no number comes twice."""
    numbers, given = RankNumbers(), set()
    for page in range(1500):
        keys = [(("ReplicaId", f"{page}-{n}"),) for n in range(2)]
        found = numbers.number(keys)
        assert set(found) == set(keys)
        assert given.isdisjoint(found.values())
        given |= set(found.values())
    assert len(numbers._known) <= MAX_RANKS * 16


def test_a_page_of_fifty_thousand_ranks_costs_a_look_up_each():
    """Which rank a series belongs to is looked up, not compared with every other."""

    def looks(ranks):
        keys = {(("engine", str(n)), ("pod", f"p{n}")) for n in range(ranks)} | {
            (("engine", str(n)),) for n in range(ranks)
        }
        began = time.process_time()
        present = _distinct(keys)
        place = _Places({key: n for n, key in enumerate(sorted(present)[:MAX_RANKS])})
        said = [place.of(key, strict=True) for key in keys]
        assert len(present) == ranks
        assert sum(one is not None for one in said) == 2 * MAX_RANKS
        return time.process_time() - began

    assert looks(50_000) < 60 * max(looks(5_000), 0.002)
    assert len(read(running("pod", *map(str, range(3000))))) == MAX_RANKS


@given(st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy")), max_size=3), min_size=1, max_size=6))
def test_a_series_belongs_to_the_lowest_rank_that_says_all_it_says(drawn):
    """As compared one by one."""
    keys = {tuple(sorted(dict(key).items())) for key in drawn}
    present = _distinct(keys)
    assert present == ({k for k in keys if k and not any(set(k) < set(o) for o in keys)} or {()})
    numbered = {key: n for n, key in enumerate(sorted(present)[:2])}
    for key in keys:
        fitting = [n for rank, n in numbered.items() if set(key) <= set(rank)]
        at_odds = all(any(dict(key).get(label, value) != value for label, value in rank) for rank in numbered)
        assert _Places(numbered).of(key, strict=True) == (min(fitting) if fitting else None if at_odds else 0)
