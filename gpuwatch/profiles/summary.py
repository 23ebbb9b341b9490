"""A trace added up: per device the span, the time in which anything ran, the gaps, and the time of each class of kernel.

Time in a class is the union over streams, so that copies beside kernels are not counted twice; the gaps are what no stream
used. Products whose shapes are known also give their bytes and operations: bandwidth is proved, not guessed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from .classes import classify, number_type
from .trace import Trace, Work

GAP_WORTH_S = 2e-6
"""Between two kernels of one stream lie one or two microseconds always."""
_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "tf32": 4, "fp8": 1, "int8": 1, "int4": 0.5, "fp4": 0.5}
_TORCH_TYPES = {"c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32"}


class Share(msgspec.Struct, frozen=True):
    """One class, or one kernel, on one device: seconds, share of the span, how often it ran."""

    name: str
    seconds: float
    share: float
    calls: int


class Products(msgspec.Struct, frozen=True):
    """Dense products whose shapes the trace tells: bytes and operations per second, operations per byte."""

    calls: int
    bytes_per_second: float
    flops_per_second: float
    flops_per_byte: float


class DeviceSummary(msgspec.Struct, frozen=True):
    """One device (or one process on a CPU). Shares are of `span_s`; `gap_share` is the time when nothing ran."""

    device: str
    on_device: bool
    span_s: float
    busy_s: float
    gap_share: float
    gap_median_s: float
    launches_per_second: float
    classes: tuple[Share, ...]
    gemm_types: tuple[Share, ...]
    longest: tuple[Share, ...]
    products: Products | None = None

    def share(self, kind: str) -> float:
        """Share of the span in a class; 0 where none ran."""
        return next((share.share for share in self.classes if share.name == kind), 0.0)


def summarise(trace: Trace, kernels: int = 10) -> tuple[DeviceSummary, ...]:
    """One summary a device, the busiest first; `kernels`: how many of the longest ones are named."""
    by_device: dict[str, list[Work]] = defaultdict(list)
    for work in trace.work:
        by_device[work.device].append(work)
    found = [_device(device, trace.on_device, work, kernels) for device, work in by_device.items()]
    return tuple(sorted(found, key=lambda d: -d.busy_s))


def _device(device: str, on_device: bool, work: list[Work], kernels: int) -> DeviceSummary:
    start = np.array([w.start_s for w in work])
    end = start + np.array([w.duration_s for w in work])
    span = float(end.max() - start.min()) or 1e-12
    busy, gaps = _union(start, end)
    kinds = [classify(w.name) for w in work]
    names = [w.name for w in work]
    shares = partial(_shares, start=start, end=end, span=span, first=np.array([not w.again for w in work]))
    types = [
        f"{k} {_type(w)}".strip() if k in ("gemm", "quantized_gemm") else "" for w, k in zip(work, kinds, strict=True)
    ]
    gap = float(np.median(gaps)) if len(gaps) else 0.0
    return DeviceSummary(
        device, on_device, span, busy, max(0.0, 1 - busy / span), gap, sum(not w.again for w in work) / span,
        shares(kinds), shares(types), shares(names)[:kernels],
        _products(work, kinds),
    )  # fmt: skip


def _shares(names: Sequence[str], start: Any, end: Any, span: float, first: Any) -> tuple[Share, ...]:
    groups: dict[str, list[int]] = defaultdict(list)
    for i, name in enumerate(names):
        if name:
            groups[name].append(i)
    found = [(name, _union(start[rows], end[rows])[0], int(first[rows].sum())) for name, rows in groups.items()]
    return tuple(Share(name[:200], s, s / span, n) for name, s, n in sorted(found, key=lambda f: (-f[1], f[0])))


def _union(start: Any, end: Any) -> tuple[float, Any]:
    """Seconds covered by at least one interval, and the gaps between that are worth the name."""
    order = np.argsort(start)
    start, reach = start[order], np.maximum.accumulate(end[order])
    gaps = np.maximum(0.0, start[1:] - reach[:-1])
    return float(reach[-1] - start[0] - gaps.sum()), gaps[gaps > GAP_WORTH_S]


def _type(work: Work) -> str:
    said = number_type(work.name)
    return said or next((_TORCH_TYPES[t] for t in work.types if t in _TORCH_TYPES), "")


def _products(work: Sequence[Work], kinds: Sequence[str]) -> Products | None:
    """From products of two matrices with known shapes: (m, k) by (k, n), or a linear layer's (n, k)."""
    seconds = moved = done = 0.0
    calls = 0
    for one, kind in zip(work, kinds, strict=True):
        matrices = [shape for shape in one.shapes if len(shape) >= 2]
        size = _BYTES.get(_type(one), 0)
        if kind != "gemm" or len(matrices) < 2 or not size:
            continue
        left, right = matrices[0], matrices[1]
        k = left[-1]
        if k not in right[-2:]:
            continue
        m, n = int(np.prod(left[:-1])), right[-1] if right[-2] == k else right[-2]
        moved += size * (m * k + k * n + m * n)
        done += 2.0 * m * k * n
        seconds += one.duration_s
        calls += 1
    if not calls or seconds <= 0 or moved <= 0:
        return None
    return Products(calls, moved / seconds, done / seconds, done / moved)
