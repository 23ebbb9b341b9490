"""A simulated engine's memory depends on what is in flight, not on what was: a hundred thousand requests do not grow it."""

import pytest

from engine_shim.studies.memory import main, resident_bytes

GROWTH_BYTES = 2 << 20  # what an allocator may still collect in arenas; a kept request is 1.5 KB


def grown_bytes(requests: int, mode: str) -> tuple[int, int]:
    """How much the process grows over the last three quarters of so many requests, and the stream's size."""
    (first, last), stream_bytes = resident_bytes([requests / 4, requests], mode)
    return last - first, stream_bytes


def test_a_hundred_thousand_requests_do_not_grow_it() -> None:
    grown, size_bytes = grown_bytes(100_000, "full")
    assert size_bytes > 20e6, "there was nothing to write"
    assert grown < GROWTH_BYTES


def test_requests_that_nothing_is_written_about_are_forgotten_too() -> None:
    """An engine of which only the pages are seen."""
    grown, _ = grown_bytes(20_000, "vllm-defaults")
    assert grown < GROWTH_BYTES


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["full", "wire", "vllm-defaults"])
def test_a_million_requests_do_not_grow_it(mode: str) -> None:
    grown, _ = grown_bytes(1_000_000, mode)
    assert grown < GROWTH_BYTES


def test_the_study_prints_its_looks(capsys: pytest.CaptureFixture[str]) -> None:
    """Six sizes, or how it is called."""
    assert main(["2400"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 8
    assert main(["few"]) == 2
    assert "usage" in capsys.readouterr().err
