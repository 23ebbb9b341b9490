"""The engine→device map as data: labels on a device, so that recordings, capsules and replays hold it.

Written by the ownership source, read by the pipeline. A device without these labels is one that nobody has mapped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

ENGINE_SLOTS = 16
"""Watched engines of one device at most; more are counted as shared all the same."""

MIXED = frozenset({
    "gpu_util_ratio", "gpu_gr_engine_active_ratio", "gpu_sm_active_ratio", "gpu_sm_occupancy_ratio",
    "gpu_tensor_active_ratio", "gpu_dram_active_ratio", "gpu_dram_bytes_per_second", "gpu_memory_busy_ratio",
    "gpu_memory_used_bytes", "gpu_pcie_tx_bytes_per_second", "gpu_pcie_rx_bytes_per_second",
    "gpu_nvlink_tx_bytes_per_second", "gpu_nvlink_rx_bytes_per_second",
})  # fmt: skip
"""What a shared device shows of all who use it: no evidence about one of them. Clocks, heat and faults hit them all."""

_KNOWN, _SHARED, _ENGINE = "gpu_map", "gpu_shared", "gpu_map.engine."


def labels(engines: Iterable[tuple[str, str]], sharing: str, *, known: bool, slots: int = 0) -> dict[str, str]:
    """The map of one device: engines with who said so. `slots`: how many were told last, so that old ones are taken back."""
    told = {_KNOWN: "known" if known else "unknown", _SHARED: sharing}
    mine = list(engines)[:ENGINE_SLOTS]
    for n in range(max(len(mine), min(slots, ENGINE_SLOTS))):
        name, how = mine[n] if n < len(mine) else ("", "")
        told[f"{_ENGINE}{n}"] = name[:256]
        told[f"{_ENGINE}{n}.from"] = how
    return told


def engines_of(info: Mapping[str, str]) -> tuple[str, ...] | None:
    """The watched engines that a device serves; None where that is not known."""
    if info.get(_KNOWN) != "known":
        return None
    names = (info.get(f"{_ENGINE}{n}", "") for n in range(ENGINE_SLOTS))
    return tuple(name for name in names if name)


def is_shared(info: Mapping[str, str]) -> bool:
    """Whether a device has users besides the engine that asks."""
    return bool(info.get(_SHARED))
