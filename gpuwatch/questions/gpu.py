"""Question 1: how is the GPU busy?

Cut-offs follow NVIDIA's DCGM guide and field practice and are proposals, not vendor limits: DRAM activity above 0.6 is
bandwidth-bound decode, tensor activity above 0.5 (or SM without DRAM) is compute-bound, a busy engine whose SM, DRAM and
tensor activity are all low waits for something else. GPU utilisation is never asked: it says only that a kernel existed.
"""

from __future__ import annotations

from ..memory.view import Window
from ..model import GpuState, Missing

SPAN_S = 10.0
THROTTLED_RATIO = 0.05


def gpu(w: Window) -> GpuState:
    """The mode over the last ten seconds; unknown without SM, tensor and DRAM activity of a mapped device."""
    span_s = max(SPAN_S, 2 * max((t.cadence_s for g in w.gpus for t in g.tiers.values()), default=SPAN_S))
    try:
        if w.gpu_mean("gpu_throttled_ratio", span_s) > THROTTLED_RATIO:
            return GpuState("throttled")
    except Missing:
        pass  # blind for throttling; the activity counters still speak
    try:
        dram, tensor = w.gpu_mean("gpu_dram_active_ratio", span_s), w.gpu_mean("gpu_tensor_active_ratio", span_s)
    except Missing:
        return GpuState("unknown")
    try:
        sm = w.gpu_mean("gpu_sm_active_ratio", span_s)
    except Missing:
        sm = None
    try:
        running = w.mean("req_running", SPAN_S)
    except Missing:
        running = 1.0
    busy = sm if sm is not None else max(dram, tensor)
    if running < 0.5 and busy < 0.1:
        return GpuState("idle")
    if tensor >= 0.5 or (sm is not None and sm >= 0.8 and dram < 0.5):
        return GpuState("compute-bound")
    if dram >= 0.6 and tensor < 0.3:
        return GpuState("bandwidth-bound")
    if busy < 0.5 and dram < 0.4 and tensor < 0.2:
        return GpuState("waiting")
    return GpuState("mixed")


def throttled_ratio(w: Window) -> float:
    """Share of the last minute under a hardware or thermal slowdown."""
    return w.gpu_mean("gpu_throttled_ratio", 60.0)
