"""A simulated engine's memory depends on what is in flight, not on what was: a hundred thousand requests do not grow it."""

import gc
from pathlib import Path

import psutil
import pytest

from engine_shim.scenario import load_scenario
from engine_shim.simulation import simulate

RATE_PER_S = 400.0
GROWTH_BYTES = 2 << 20  # what an allocator may still collect in arenas; a kept request is 1.5 KB


class Sink:
    """Takes a world stream and keeps nothing but its size."""

    size_bytes = 0

    def write(self, data: bytes) -> int:
        self.size_bytes += len(data)
        return len(data)

    def flush(self) -> None:
        pass


def grown_bytes(folder: Path, requests: int, mode: str) -> tuple[int, int]:
    """How much the process grows over the last three quarters of so many requests, and the stream's size.

    Three kinds of requests: open ones, clients in a closed loop, and prompts with a common prefix.
    """
    seconds = requests / RATE_PER_S
    text = f"""
        about = "many short requests"
        duration_s = {seconds}
        [engine]
        model = "1b"
        max_num_seqs = 128
        [[load]]
        name = "open"
        arrivals = "gamma"
        cv = 2.0
        rate_per_s = {RATE_PER_S * 0.8}
        prompt_tokens = {{ uniform = [10, 60] }}
        output_tokens = {{ uniform = [1, 4] }}
        [[load]]
        name = "shared"
        arrivals = "poisson"
        rate_per_s = {RATE_PER_S * 0.2}
        prompt_tokens = 100
        shared_prefix_tokens = 64
        output_tokens = 2
        [[load]]
        name = "closed"
        arrivals = "closed"
        concurrency = 4
        prompt_tokens = 30
        output_tokens = 40
        [expect]
        class = "none"
    """
    path = folder / "many.toml"
    path.write_text(text)
    process, sizes, sink = psutil.Process(), [], Sink()

    def look(now_s: float) -> None:
        if now_s >= seconds * (1 + 3 * len(sizes)) / 4:
            gc.collect()
            sizes.append(process.memory_info().rss)

    simulate(load_scenario(path, "h100"), sink, device="h100", seed=1, mode=mode, on_poll=look)  # type: ignore[arg-type]
    assert len(sizes) == 2
    return sizes[1] - sizes[0], sink.size_bytes


def test_a_hundred_thousand_requests_do_not_grow_it(tmp_path: Path) -> None:
    grown, size_bytes = grown_bytes(tmp_path, 100_000, "full")
    assert size_bytes > 20e6, "there was nothing to write"
    assert grown < GROWTH_BYTES


def test_requests_that_nothing_is_written_about_are_forgotten_too(tmp_path: Path) -> None:
    """An engine of which only the pages are seen."""
    grown, _ = grown_bytes(tmp_path, 20_000, "vllm-defaults")
    assert grown < GROWTH_BYTES


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["full", "wire", "vllm-defaults"])
def test_a_million_requests_do_not_grow_it(tmp_path: Path, mode: str) -> None:
    grown, _ = grown_bytes(tmp_path, 1_000_000, mode)
    assert grown < GROWTH_BYTES
