"""Ranks, replicas and models of one page: who is counted, who is not, and under which number."""

from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.sources.page import EnginePage
from gpuwatch.sources.ranks import MAX_RANKS, RankNumbers
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
