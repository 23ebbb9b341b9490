"""Traces as a GPU writes them (kernels on streams, correlated with operators), composed here with known times."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.profiles import TraceError, classify, read_trace, readings, summarise


def kernel(
    name: str, start_us: float, us: float, stream: int = 7, device: int = 0, external: int | None = None
) -> dict[str, Any]:
    """One kernel."""
    args: dict[str, Any] = {"device": device, "stream": stream, "correlation": 1}
    if external is not None:
        args["External id"] = external
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "ts": start_us,
        "dur": us,
        "pid": device,
        "tid": stream,
        "args": args,
    }


def written(folder: Path, events: list[Any]) -> Path:
    """A trace file."""
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}), "utf-8")
    return path


def test_shares_gaps_and_overlapping_streams(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        [
            kernel("ampere_bf16_s16816gemm_bf16_128x64", 0, 400),
            kernel("flash_fwd_splitkv_kernel", 400, 100),
            kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 450, 100, stream=20),  # half of it beside the other
            kernel("void at::native::vectorized_elementwise_kernel", 950, 50),
        ],
    )
    (device,) = summarise(read_trace(path))
    assert device.span_s == pytest.approx(1e-3)
    assert device.busy_s == pytest.approx(600e-6)
    assert device.gap_share == pytest.approx(0.4)
    assert device.gap_median_s == pytest.approx(400e-6)
    assert {share.name: round(share.share, 6) for share in device.classes} == {
        "gemm": 0.4, "attention": 0.1, "collective": 0.1, "pointwise": 0.05
    }  # fmt: skip
    assert [share.name for share in device.gemm_types] == ["gemm bf16"]
    assert [reading.what for reading in readings((device,))] == ["waiting"]


def test_dense_products_of_a_small_batch_wait_for_memory(tmp_path: Path) -> None:
    shapes = {
        "External id": 5,
        "Input Dims": [[16, 4096], [4096, 4096]],
        "Input type": ["c10::BFloat16", "c10::BFloat16"],
    }
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 1, "pid": 9, "tid": 9, "args": shapes}
    path = written(tmp_path, [operator, kernel("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", 10, 12, external=5)])
    (device,) = summarise(read_trace(path))
    assert device.products is not None
    moved = 2 * (16 * 4096 + 4096 * 4096 + 16 * 4096)
    assert device.products.bytes_per_second == pytest.approx(moved / 12e-6)
    assert device.products.flops_per_byte == pytest.approx(2 * 16 * 4096 * 4096 / moved)
    assert [reading.what for reading in readings((device,))] == ["bandwidth_bound"]


def test_dense_products_of_a_long_prompt_do_not(tmp_path: Path) -> None:
    shapes = {
        "External id": 5,
        "Input Dims": [[4096, 4096], [4096, 4096]],
        "Input type": ["c10::BFloat16", "c10::BFloat16"],
    }
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 1, "pid": 9, "tid": 9, "args": shapes}
    path = written(tmp_path, [operator, kernel("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", 10, 200, external=5)])
    assert readings(summarise(read_trace(path))) == ()


def test_weights_unpacked_before_each_product(tmp_path: Path) -> None:
    events = []
    for i in range(10):
        events += [
            kernel("void vllm::awq::dequantize_weights", 100 * i, 55),
            kernel("ampere_fp16_s16816gemm", 100 * i + 55, 44),
        ]
    (said,) = readings(summarise(read_trace(written(tmp_path, events))))
    assert (said.what, said.supports) == ("quantization_fallback", "quantization_fallback")
    assert said.observed == pytest.approx(0.55, abs=0.01)


def test_two_devices_are_two_summaries(tmp_path: Path) -> None:
    events = [
        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 0, 700), kernel("ampere_bf16_s16816gemm", 700, 300),
        kernel("ampere_bf16_s16816gemm", 0, 990, device=1),
        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 990, 10, device=1),
    ]  # fmt: skip
    found = readings(summarise(read_trace(written(tmp_path, events))))
    assert [(reading.device, reading.what) for reading in found] == [("0", "communication")]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("void marlin::Marlin<__nv_bfloat16>", "quantized_gemm"),
        ("nvjet_tst_128x8_64x12", "gemm"),
        ("Cijk_Alik_Bljk_BBS_BH", "gemm"),
        ("void flash::flash_fwd_splitkv_kernel", "attention"),
        ("kernel_unified_attention_2d", "attention"),
        ("BatchDecodeWithPagedKVCacheDispatched", "attention"),
        ("void vllm::reshape_and_cache_flash_kernel", "kv_write"),
        ("void vllm::cross_device_reduce_1stage", "collective"),
        ("reconstruct_exllama_4bit", "dequantize"),
        ("void kDequantizeBlockwise<__half", "dequantize"),
        ("dynamic_per_token_scaled_fp8_quant_kernel", "quantize"),
        ("cutlass::device_kernel<GemmUniversal<float_e4m3_t", "quantized_gemm"),
        ("vllm::rms_norm_kernel", "pointwise"),
        ("Memcpy HtoD (Pinned -> Device)", "copy"),
        ("void at::native::sbtopk::gatherTopK", "sampling"),
        ("a_kernel_that_nobody_knows", "other"),
    ],
)
def test_names_of_real_kernels(name: str, kind: str) -> None:
    assert classify(name) == kind


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not a trace"), (b"{", "not a trace"), (b"[]", "not a trace"), (b"\x1f\x8bxx", "gzip"),
        (b'{"traceEvents": []}', "neither kernels"), (b'{"traceEvents": 3}', "not a trace"),
        (b'{"traceEvents": [{"ph":"X","cat":"kernel","name":"k","ts":"x","dur":1}]}', "neither kernels"),
        (b'{"traceEvents": [{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":-1}]}', "neither kernels"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_said_with_its_name(tmp_path: Path, body: bytes, why: str) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(body)
    with pytest.raises(TraceError, match=why) as raised:
        read_trace(path)
    assert str(path) in str(raised.value)


def test_a_packed_file_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * (64 << 20)))
    with pytest.raises(TraceError, match="times its size"):
        read_trace(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "nowhere.json")


NAMES = st.sampled_from(["ncclX", "gemm_bf16", "dequant", "x\x1b[31m"])


@given(
    st.lists(st.tuples(NAMES, st.floats(0, 1e6), st.floats(0, 1e4), st.integers(0, 3)), min_size=1, max_size=40)
)  # fmt: skip
def test_no_share_is_impossible(
    tmp_path_factory: pytest.TempPathFactory, kernels: list[tuple[str, float, float, int]]
) -> None:
    path = written(tmp_path_factory.mktemp("t"), [kernel(n, ts, us, stream) for n, ts, us, stream in kernels])
    for device in summarise(read_trace(path)):
        assert -1e-9 <= device.gap_share <= 1 + 1e-9
        assert all(-1e-9 <= share.share <= 1 + 1e-6 for share in (*device.classes, *device.longest))
        assert device.busy_s <= device.span_s * (1 + 1e-9)
