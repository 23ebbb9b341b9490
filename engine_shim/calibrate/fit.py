"""From measured step times to a device profile: the one whose predictions are nearest, in ratio.

The loss is the mean of Huber's function of log(predicted / measured): a step twice too long counts like one twice too
short, long steps no more than short ones, and a few disturbed measurements do not decide. It is minimised by a pattern
search: each constant in turn is tried larger and smaller, by factors that shrink, from two starts. Deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..devices.profiles import Device
from ..runners.modelled.runner import ModelRunner
from ..settings.engine import EngineSettings

# What is fitted, and the least that is tried. Rates are what is achieved, in flops and bytes per second, and at most a
# little above the base's peaks: with one model shape, time per token and time per flop look alike, and a rate without a
# bound would run off.
_CONSTANTS = {
    "matmul": 1e6, "attention": 1e6, "bandwidth": 1e6, "launch_s": 1e-7, "per_sequence_s": 1e-8, "per_token_s": 1e-10,
    "per_prefill_s": 1e-8,
}  # fmt: skip
_FACTORS = (4.0, 2.0, 1.4, 1.2, 1.1, 1.05, 1.02, 1.01)
_PASSES = 12  # at most, with each factor
_ABOVE_PEAK = 1.25  # a peak that was measured need not be the best that the device can do
_HUBER = 0.2


@dataclass(frozen=True, slots=True)
class Fit:
    """A profile, and its relative errors |predicted / measured − 1| on each sample."""

    device: Device
    errors: np.ndarray

    @property
    def median_error_ratio(self) -> float:
        """Half of the steps are predicted better than this."""
        return float(np.median(self.errors))


def fit_device(
    base: Device, settings: EngineSettings, demands: Sequence[tuple[float, ...]], seconds: Sequence[float]
) -> Fit:
    """`base` with the constants that fit best."""
    asked, taken = np.array(demands), np.array(seconds)
    if len(asked) != len(taken) or len(taken) < len(_CONSTANTS):
        raise ValueError(f"a fit needs at least {len(_CONSTANTS)} measured steps, not {len(taken)}")
    if not (taken > 0).all():
        raise ValueError("a measured step took no time")

    def loss(constants: dict[str, float]) -> float:
        return _huber(np.log(_predicted(_with(base, settings, constants), settings, asked) / taken))

    peak = base.flops_per_s(settings.dtype) * _ABOVE_PEAK
    most = {"matmul": peak, "attention": peak, "bandwidth": base.bandwidth_bytes_per_s * _ABOVE_PEAK}
    found = [_search(start, most, loss) for start in _starts(base, settings, taken)]
    device = _with(base, settings, min(found, key=loss))
    return Fit(device, errors_of(device, settings, demands, seconds))


def errors_of(
    device: Device, settings: EngineSettings, demands: Sequence[tuple[float, ...]], seconds: Sequence[float]
) -> np.ndarray:
    """|predicted / measured − 1| of each step."""
    errors: np.ndarray = np.abs(_predicted(device, settings, np.array(demands)) / np.array(seconds) - 1)
    return errors


def _predicted(device: Device, settings: EngineSettings, demands: np.ndarray) -> np.ndarray:
    return ModelRunner(settings, device).seconds(demands)


def _huber(x: np.ndarray) -> float:
    size = np.abs(x)
    return float(np.where(size < _HUBER, size**2 / (2 * _HUBER), size - _HUBER / 2).mean())


def _starts(base: Device, settings: EngineSettings, seconds: np.ndarray) -> list[dict[str, float]]:
    """Where to search from: a device of slow memory, and one of fast memory and slow launches."""
    peak, shortest = base.flops_per_s(settings.dtype), float(seconds.min())
    shared = {
        "matmul": peak / 2, "attention": peak / 4, "per_sequence_s": shortest / 50, "per_token_s": shortest / 1000,
        "per_prefill_s": shortest / 20,
    }  # fmt: skip
    slow = {"bandwidth": base.bandwidth_bytes_per_s / 4, "launch_s": shortest / 10}
    fast = {"bandwidth": base.bandwidth_bytes_per_s / 1.2, "launch_s": shortest / 1.2}
    return [{**shared, **slow}, {**shared, **fast}]


def _search(
    constants: dict[str, float], most: dict[str, float], loss: Callable[[dict[str, float]], float]
) -> dict[str, float]:
    best = loss(constants)
    for factor in _FACTORS:
        for _ in range(_PASSES):
            before = best
            for name, least in _CONSTANTS.items():
                larger = min(constants[name] * factor, most.get(name, np.inf))
                for value in (larger, max(constants[name] / factor, least)):
                    tried = loss({**constants, name: value})
                    if tried < best:
                        best, constants = tried, {**constants, name: value}
            if best > before * 0.9999:
                break
    return constants


def _with(base: Device, settings: EngineSettings, constants: dict[str, float]) -> Device:
    """A profile that achieves these rates; its peaks are at least what it achieves."""
    peak = max(base.flops_per_s(settings.dtype), constants["matmul"], constants["attention"])
    bandwidth = max(base.bandwidth_bytes_per_s, constants["bandwidth"])
    peak_name = {"fp8": "fp8_flops_per_s", "fp32": "fp32_flops_per_s"}.get(settings.dtype, "bf16_flops_per_s")
    return replace(
        base,
        **{peak_name: peak},
        bandwidth_bytes_per_s=bandwidth,
        matmul_share=constants["matmul"] / peak,
        attention_share=constants["attention"] / peak,
        bandwidth_share=constants["bandwidth"] / bandwidth,
        **{name: constants[name] for name in ("launch_s", "per_sequence_s", "per_token_s", "per_prefill_s")},
    )
