"""The families and the incident classes that belong to them: the whole list, classes without a rule yet included.

A family decides routing and the first action, a class is the mechanism. A stem that is listed here and has no module
beside it is known and not diagnosed yet: other classes may name it as a neighbour or as a symptom.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

FAMILIES: Final = MappingProxyType(
    {
        "kv_admission": (
            "batch_thrashing",
            "long_context_kv_pressure",
            "preemption_storm",
            "head_of_line_blocking",
            "max_tokens_over_reservation",
            "unschedulable_request",
            "admission_deferred",
            "prefix_cache_collapse",
            "kv_offload_stall",
        ),
        "demand": ("overload", "traffic_surge", "length_shift", "runaway_generation", "retry_storm"),
        "engine_down": ("engine_hang", "engine_crash", "start_failure", "memory_fragmentation", "cold_start"),
        "compute": (
            "prefill_decode_interference",
            "quantization_fallback",
            "spec_decode_regression",
            "step_time_regression",
        ),
        "device": ("gpu_throttling", "gpu_hardware_fault", "gpu_noisy_neighbor", "straggler_gpu"),
        "frontend_host": (
            "frontend_cpu_bottleneck",
            "host_cpu_throttling",
            "host_memory_leak",
            "host_io_contention",
            "streaming_jitter",
        ),
        "fleet": ("replica_imbalance", "capacity_loss", "pd_transfer_stall"),
        "telemetry": ("stale_telemetry",),
    }
)
"""Family → the stems of its classes."""

FAMILY_OF: Final = MappingProxyType({stem: family for family, stems in FAMILIES.items() for stem in stems})
"""Stem → its family."""
