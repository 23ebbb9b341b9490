"""Traces that the real torch profiler wrote of the bundled engine's own layers."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from engine_shim.model.quantized.calls import KernelCalls
from engine_shim.model.quantized.layers import linear_for
from gpuwatch.profiles import read_trace, readings, render, summarise


def traced(folder: Path, *, fallback: bool) -> Path:
    """Twenty products of an int8 layer, by its kernel or by the fallback."""
    layer = linear_for(torch.randn(512, 512), None, "int8", KernelCalls(), fallback=fallback)
    x = torch.randn(4, 512)
    layer(x)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as taken:
        for _ in range(20):
            layer(x)
    path = folder / f"trace-{fallback}.json"
    taken.export_chrome_trace(str(path))
    return path


def test_a_fallback_is_proved_by_what_ran(tmp_path: Path) -> None:
    path = traced(tmp_path, fallback=True)
    (cpu,) = summarise(read_trace(path))
    assert cpu.share("dequantize") > cpu.share("quantized_gemm")
    assert cpu.share("gemm") > 0
    (said,) = [reading for reading in readings((cpu,)) if reading.supports]
    assert said.what == "quantization_fallback"
    assert said.observed == cpu.share("dequantize")
    assert "quantization_fallback" in render((cpu,), (said,))


def test_a_quantized_kernel_is_no_fallback(tmp_path: Path) -> None:
    (cpu,) = summarise(read_trace(traced(tmp_path, fallback=False)))
    assert cpu.share("quantized_gemm") > 0.1
    assert [reading.what for reading in readings((cpu,))] == ["quantized_kernels_run"]


def test_a_packed_trace_says_the_same(tmp_path: Path) -> None:
    path = traced(tmp_path, fallback=True)
    packed = tmp_path / "trace.json.gz"
    with path.open("rb") as plain, gzip.open(packed, "wb") as out:
        shutil.copyfileobj(plain, out)
    assert summarise(read_trace(packed)) == summarise(read_trace(path))


def test_time_in_operators_adds_up_to_the_busy_time(tmp_path: Path) -> None:
    trace = read_trace(traced(tmp_path, fallback=True))
    (cpu,) = summarise(trace)
    assert sum(work.duration_s for work in trace.work) == pytest.approx(cpu.busy_s, rel=0.05)
