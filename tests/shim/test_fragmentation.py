"""Fragmentation's figures, from their definitions to the engine's page."""

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine_shim.engine.step_extras import step_fields
from engine_shim.kv.fragmentation import allocator_figures, cuda_allocator, external_ratio, internal_ratio
from engine_shim.kv.fragmentation import reserved_unused_ratio as reserved_unused
from engine_shim.telemetry import EngineTelemetry, LiveRequests
from engine_shim.telemetry.allocator_page import AllocatorPage
from engine_shim.telemetry.exposition import Page
from tests.shim.playing import make_engine, request
from tests.shim.telling import info

MIB = 1 << 20


def test_the_ratios_are_those_of_the_definitions() -> None:
    """Half-empty blocks, promises, free blocks in pieces; of nothing there is no ratio."""
    assert internal_ratio(24, 4, 16) == 24 / 64
    assert reserved_unused(3, 9) == 0.25
    assert external_ratio(3, 6) == 0.5
    assert external_ratio(6, 6) == 0.0
    assert all(math.isnan(value) for value in (internal_ratio(0, 0, 16), reserved_unused(0, 0), external_ratio(0, 0)))


def page_of(**table: object) -> dict[str, float]:
    """The series of an engine's page after three steps with a hole in the pool."""
    engine = make_engine(kv_pool_tokens=128, watermark_ratio=0.0, reserve="max_tokens", prefix_cache=False, **table)
    facts = info(kv_total_blocks=8, step_fields=step_fields(engine.settings))
    telemetry = engine.telemetry = EngineTelemetry(facts, LiveRequests(b"salt"), engine.clock.now)
    for name, prompt, output in (("a", 46, 2), ("b", 14, 18), ("c", 30, 18)):
        engine.add(request(name, prompt, output))
    engine.step()
    engine.step()
    engine.abort("c")
    engine.step()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(telemetry.render().decode())
        for sample in family.samples
    }


def test_the_page_shows_external_fragmentation_of_a_contiguous_pool_only() -> None:
    """Gaps of three and three blocks around one run: half of the free blocks are out of reach for one request."""
    assert page_of(kv_layout="contiguous")["shim:kv_external_fragmentation_ratio"] == 0.5
    assert "shim:kv_external_fragmentation_ratio" not in page_of()


def segment(*blocks: tuple[int, str], stream: int = 0, expandable: bool = False) -> dict[str, object]:
    """A segment of memory_snapshot(): (MiB, state) of each block."""
    rows = [{"size": size * MIB, "state": state} for size, state in blocks]
    return {"stream": stream, "segment_type": "large", "is_expandable": expandable, "blocks": rows}


STATS = {
    "reserved_bytes.all.current": 100 * MIB, "allocated_bytes.all.current": 60 * MIB,
    "requested_bytes.all.current": 57 * MIB, "inactive_split_bytes.all.current": 40 * MIB,
    "num_alloc_retries": 2, "num_ooms": 1,
}  # fmt: skip


def test_allocator_figures_follow_the_definitions() -> None:
    """External is that of the worst pool and stream: holes of 10, 10 and 20 MiB in one, a single one in the other."""
    holes = [
        segment((10, "inactive"), (30, "active_allocated"), (10, "inactive"), (20, "inactive")),
        segment((30, "active_allocated"), (25, "inactive"), stream=1),
    ]
    expected = {
        "cache_slack_ratio": 0.4, "stuck_ratio": 0.4, "internal_fragmentation_ratio": 0.05,
        "external_fragmentation_ratio": 0.5, "retries_total": 2, "ooms_total": 1,
    }  # fmt: skip
    assert allocator_figures(STATS, holes) == pytest.approx(expected)


def test_what_the_allocator_cannot_say_is_absent() -> None:
    """Expandable segments are not in inactive_split; the asynchronous backend reports zeros; no inactive block is 0."""
    figures = allocator_figures(STATS, [segment((60, "active_allocated"), expandable=True)])
    assert "stuck_ratio" not in figures
    assert figures["external_fragmentation_ratio"] == 0.0
    assert allocator_figures(dict.fromkeys(STATS, 0), []) == {}


def test_the_page_asks_the_allocator_seldom_and_shows_only_what_it_says() -> None:
    """One reading serves all series of a page, and the next page within five seconds."""
    now, asked = [1000.0], []

    def read() -> dict[str, float]:
        asked.append(now[0])
        return {"cache_slack_ratio": 0.25, "retries_total": float(len(asked))}

    page = Page(AllocatorPage(read, lambda: now[0]).families())
    text = page.render().decode()
    assert "shim:torch_allocator_cache_slack_ratio 0.25" in text
    assert "# TYPE shim:torch_allocator_retries_total counter" in text
    assert "stuck" not in text
    now[0] += 4.9
    page.render()
    assert asked == [1000.0]
    now[0] += 0.2
    assert "shim:torch_allocator_retries_total 2" in page.render().decode()


@pytest.mark.gpu
def test_a_real_allocator_shows_the_holes_that_were_made() -> None:
    """Every second of many equal tensors is freed: most of what is inactive lies outside the largest block."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    torch.cuda.empty_cache()
    tensors = [torch.empty(4 * MIB, dtype=torch.uint8, device="cuda") for _ in range(40)]
    del tensors[::2]
    figures = cuda_allocator()
    assert figures["external_fragmentation_ratio"] > 0.5
    assert 0 < figures["cache_slack_ratio"] < 1
    assert len(tensors) == 20


def test_without_cuda_there_are_no_figures() -> None:
    """A CPU has no caching allocator: absent, not zero."""
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    assert cuda_allocator() == {}
    assert Page(AllocatorPage(cuda_allocator, lambda: 0.0).families()).render() == b""
