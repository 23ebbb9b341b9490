"""The condition of a modelled device: what of it the engine can use, and who else shows in its counters.

Ratios 0–1 of what the device has. A condition holds for whole steps: it changes between two of them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceState:
    """`clock_ratio` of the maximum SM clock; `throttled` is the hardware's own word for why it is low.

    `compute_left_ratio` and `bandwidth_left_ratio` are what other tenants leave, `taken_sm_ratio` and
    `taken_dram_ratio` what a monitor sees of them. `step_factor` stretches whole steps without more work for the GPU.
    `gpu` is the one GPU of several whose clock is low; -1: all of them.
    """

    clock_ratio: float = 1.0
    idle_clock_ratio: float = 1.0
    throttled: bool = False
    compute_left_ratio: float = 1.0
    bandwidth_left_ratio: float = 1.0
    taken_sm_ratio: float = 0.0
    taken_dram_ratio: float = 0.0
    step_factor: float = 1.0
    gpu: int = -1


NORMAL = DeviceState()
