"""GPM: SM activity and occupancy, tensor and memory activity from the driver itself, on Hopper and later.

A figure is the mean between two samples, which must be more than 100 ms apart: the first look brings nothing. The two
buffers change roles from look to look, so nothing is allocated. Percent become ratios, MiB/s bytes per second. Each
figure has an answer of its own, and NaN is one of them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from .library import INVALID_ARGUMENT, NOT_SUPPORTED, REFUSALS, Library, NvmlError

SHORTEST_S = 0.11
LONGEST_S = 60.0
"""A sample older than this begins anew: a mean over a minute of silence describes no moment."""
_VERSION = 1
_MIB = 1024.0 * 1024.0


class Figure(msgspec.Struct, frozen=True):
    """One GPM metric by its id."""

    id: int
    signal: str
    factor: float


FIGURES = (
    Figure(1, "gpu_gr_engine_active_ratio", 0.01),
    Figure(2, "gpu_sm_active_ratio", 0.01),
    Figure(3, "gpu_sm_occupancy_ratio", 0.01),
    Figure(5, "gpu_tensor_active_ratio", 0.01),
    Figure(10, "gpu_dram_active_ratio", 0.01),
    Figure(20, "gpu_pcie_tx_bytes_per_second", _MIB),
    Figure(21, "gpu_pcie_rx_bytes_per_second", _MIB),
    Figure(61, "gpu_nvlink_tx_bytes_per_second", _MIB),
    Figure(60, "gpu_nvlink_rx_bytes_per_second", _MIB),
)

_HEADER_BYTES, _COLUMNS = 24, 6
_ANSWERS = struct.Struct("IidPPP" * len(FIGURES))
"""nvmlGpmMetric_t of nvml.h: id, nvmlReturn, value, three pointers; they follow version, count and two samples."""


class Request:
    """The struct that asks for all figures; one serves all devices."""

    def __init__(self, binding: Any) -> None:
        self.struct = binding.c_nvmlGpmMetricsGet_t()
        self.struct.version, self.struct.numMetrics = _VERSION, len(FIGURES)
        for i, figure in enumerate(FIGURES):
            self.struct.metrics[i].metricId = figure.id

    def answers(self) -> Iterator[tuple[int, float]]:
        """(nvmlReturn, value) of each figure, read at once: the binding's attributes cost a microsecond each."""
        told = _ANSWERS.unpack_from(self.struct, _HEADER_BYTES)
        return zip(told[1::_COLUMNS], told[2::_COLUMNS], strict=True)


class Gpm:
    """Samples one device or MIG instance. `takes` are the ways to take a sample, in the order to be tried.

    Raises NvmlError on construction where the device has no GPM.
    """

    def __init__(self, library: Library, request: Request, takes: list[Callable[[Any], object]]) -> None:
        self._library = library
        self._request = request
        self._takes = takes
        self._before: Any = library.ask("nvmlGpmSampleAlloc")
        self._now: Any = library.ask("nvmlGpmSampleAlloc")
        self._taken_at = math.nan
        self.refused = 0

    def read(self, at: float) -> dict[str, float]:
        """Means since the last look. Raises NvmlError for what is neither refused nor too early."""
        gap_s = at - self._taken_at
        if gap_s < SHORTEST_S or not self._take():
            return {}
        self._taken_at = at
        try:
            return self._figures() if gap_s <= LONGEST_S else {}
        finally:
            self._before, self._now = self._now, self._before

    def close(self) -> None:
        """Give the buffers back."""
        self._takes = []
        for sample in (self._before, self._now):
            try:
                self._library.ask("nvmlGpmSampleFree", sample)
            except NvmlError:
                return  # the library has gone first, and the buffers with it

    def _take(self) -> bool:
        while self._takes:
            try:
                self._takes[0](self._now)
                return True
            except NvmlError as error:
                if error.code not in REFUSALS and error.code != INVALID_ARGUMENT:
                    raise
                self._takes.pop(0)
                self.refused = error.code
        return False

    def _figures(self) -> dict[str, float]:
        request = self._request
        request.struct.sample1, request.struct.sample2 = self._before, self._now
        self._library.ask("nvmlGpmMetricsGet", request.struct)
        return {
            figure.signal: value * figure.factor
            for figure, (code, value) in zip(FIGURES, request.answers(), strict=True)
            if code == 0 and math.isfinite(value)
        }


def supports(library: Library, handle: Any) -> None:
    """Raises NvmlError where the device has no GPM, or the driver will not say."""
    if not library.ask("nvmlGpmQueryDeviceSupport", handle).isSupportedDevice:
        raise NvmlError("nvmlGpmQueryDeviceSupport", NOT_SUPPORTED, "no GPM: needs Hopper or later")


def sampler(library: Library, request: Request, handle: Any, board: Any = None, instance: int | None = None) -> Gpm:
    """For a device; or for a MIG instance by its board and number, then by its own handle. Raises NvmlError."""

    def of_device(sample: Any) -> object:
        return library.ask("nvmlGpmSampleGet", handle, sample)

    def of_instance(sample: Any) -> object:
        return library.ask("nvmlGpmMigSampleGet", board, instance, sample)

    return Gpm(library, request, [of_device] if instance is None else [of_instance, of_device])
