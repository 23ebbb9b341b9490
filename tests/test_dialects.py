"""Every dialect is complete, and every captured page is read as what it is."""

import itertools
from pathlib import Path

import pytest

from gpuwatch.catalog import CATALOG, check_value
from gpuwatch.dialects import all_dialects, detect
from gpuwatch.dialects.dialect import ENGINE_SIGNALS, FAST_SIGNALS
from gpuwatch.sources.page.engine_page import EnginePage, UnknownPageError
from gpuwatch.wire.exposition import parse

CAPTURES = sorted((Path(__file__).parent / "captures").glob("*.txt"))
DIALECTS = sorted(all_dialects())


@pytest.mark.parametrize("name", DIALECTS)
def test_every_engine_signal_is_mapped_or_absent_with_a_reason(name):
    dialect = all_dialects()[name]
    mapped = dialect.mapped
    assert sorted({*mapped, *dialect.absent}) == sorted(ENGINE_SIGNALS)
    assert len(mapped) == len(set(mapped)), "mapped twice"
    assert not set(mapped) & set(dialect.absent)
    assert all(len(reason) > 10 for reason in dialect.absent.values())


@pytest.mark.parametrize("name", DIALECTS)
def test_the_kind_of_a_mapping_is_the_catalogues(name):
    dialect = all_dialects()[name]
    assert all(CATALOG[signal].kind == "histogram" for signal in dialect.histograms)
    assert all(CATALOG[signal].kind != "histogram" for signal in dialect.signals)
    assert all(CATALOG[signal].kind == "histogram" for signal in dialect.means)


def test_the_fast_lane_asks_for_signals_of_the_catalogue_only():
    assert set(FAST_SIGNALS) <= set(ENGINE_SIGNALS)


@pytest.mark.parametrize("path", CAPTURES, ids=lambda p: p.name)
def test_a_captured_page_belongs_to_exactly_one_engine(path):
    names = parse(path.read_bytes()).names
    found = [name for name in DIALECTS if detect(names, name)]
    assert found == [path.name.split("-")[0]]


@pytest.mark.parametrize("path", CAPTURES, ids=lambda p: p.name)
def test_a_captured_page_is_read_within_the_catalogues_bounds(path):
    report = EnginePage("e").read(path.read_bytes(), 1.0)
    assert report.dropped == 0
    assert report.histograms
    for frame in report.frames:
        assert all(check_value(n, v) for n, v in zip(frame.names, frame.values[0], strict=True))
    for histogram in report.histograms:
        assert all(a <= b for a, b in itertools.pairwise((*histogram.cumulative, histogram.count)))


def lines_of(term, theirs, prefix):
    """A series that the term selects, under one of its names."""
    labels = ",".join(f'{k}="{v[0]}"' for k, v in term.where.items())
    return f"{theirs if term.bare else prefix + theirs}{{{labels}}} 0.5\n"


@pytest.mark.parametrize("name", DIALECTS)
def test_each_alternative_name_is_read_alone(name):
    """Old and new names and ways stand side by side: a page with any one of them shows the signal."""
    dialect = all_dialects()[name]
    prefix = dialect.prefixes[0]
    sentinel = min(n for n in dialect.sentinels(prefix) if not n.endswith("_bucket")) + '{some="other"} 1\n'
    for signal, choice in ((s, c) for s, reading in dialect.signals.items() for c in reading.choices):
        for varied in choice.terms:
            for theirs in varied.names:
                body = sentinel + lines_of(varied, theirs, prefix)
                body += "".join(lines_of(t, t.names[0], prefix) for t in choice.terms if t != varied)
                report = EnginePage("e", name).read(body.encode(), 1.0)
                assert signal in {n for frame in report.frames for n in frame.names}, (signal, theirs)


def values(report):
    return {n: v for frame in report.frames for n, v in zip(frame.names, frame.values[0], strict=True)}


def captured(name):
    return (Path(__file__).parent / "captures" / name).read_bytes()


def test_vllm_v1_reads_as_its_page_says():
    report = EnginePage("e").read(captured("vllm-0.32.0-synthetic.txt"), 1.0)
    read = values(report)
    assert (read["req_running"], read["req_waiting"], read["req_waiting_capacity"]) == (41, 3, 2)
    assert read["req_finished_total"] == 4402 + 795 + 4
    assert (read["req_aborted_total"], read["req_rejected_total"], read["req_preempted_total"]) == (9, 6, 17)
    assert read["req_arrived_total"] == 4402 + 795 + 4 + 6 + 41 + 3
    assert (read["kv_capacity_tokens"], read["kv_block_tokens"], read["kv_total_blocks"]) == (240624, 16, 15039)
    assert read["steps_total"] == 91820
    assert report.info[0].labels["model"] == "llama-8b"
    ttft = next(h for h in report.histograms if h.name == "ttft_seconds")
    assert (ttft.bounds[0], ttft.bounds[-1], len(ttft.bounds), ttft.count) == (0.001, 2560.0, 22, 5251)


def test_vllm_v0_reads_under_its_old_names():
    report = EnginePage("e").read(captured("vllm-0.6.3-synthetic.txt"), 1.0)
    read = values(report)
    assert (read["req_running"], read["req_waiting"]) == (12, 7), "swapped requests hold no KV"
    assert read["kv_usage_ratio"] == 0.91
    assert read["prefix_hit_ratio"] == 0.42
    assert read["kv_capacity_tokens"] == 7600 * 16
    assert {"itl_seconds", "queue_seconds", "ttft_seconds"} <= {h.name for h in report.histograms}


@pytest.mark.parametrize("prefix", ["vllm_", "ray_vllm_"])
def test_sanitised_names_are_understood(prefix):
    body = captured("vllm-0.32.0-synthetic.txt").replace(b"vllm:", prefix.encode())
    mine = values(EnginePage("e").read(body, 1.0))
    assert mine == values(EnginePage("e").read(captured("vllm-0.32.0-synthetic.txt"), 1.0))


def test_a_page_of_nobody_is_refused_with_what_was_seen():
    with pytest.raises(UnknownPageError, match="no dialect recognises this page"):
        EnginePage("e").read(b"go_goroutines 7\n", 1.0)
    with pytest.raises(UnknownPageError, match="not the dialect shim"):
        EnginePage("e", "shim").read(captured("vllm-0.32.0-synthetic.txt"), 1.0)
    with pytest.raises(KeyError):
        EnginePage("e", "tgi2")
