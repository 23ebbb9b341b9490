"""The roofline runner: says how long a step would take on a modelled device, and what the device's counters would read.

Per GPU of a tensor-parallel engine, for a step of `tokens` tokens of which `samples` yield a next token:

- matrix products: 2 flops per weight and token, plus 2 · hidden · vocab per sample;
- attention: 4 · layers · heads · head_dim flops per pair of query and key, so quadratic in a prompt's length;
- bytes: all weights once, the KV of every running sequence once for decodes, the KV of the context once per chunk
  for prefills, KV written, and activations (estimated at 10 · hidden + 4 · intermediate values per layer and token);
- busy = max(matmul / achieved + attention / achieved, bytes / achieved) + tensor-parallel all-reduces, two per layer;
- drafts of speculation are tokens, samples and pairs like others, and host work for their request once more; weights
  in fewer bits: quantized.py;
- step = busy + launch overhead + host work per sequence (and, in fitted profiles, per token and per prefill chunk).
  Clocks below the maximum slow the compute part only; what other tenants take is missing from peak and bandwidth.

This is the usual lower bound for decodes, t ≥ max((weights + KV) / bandwidth, flops / peak) + launch, made equal by
achieved shares (devices/profiles.py). What it leaves out: kernel tails at small batches, expert routing.

Counters over a step, following the DCGM definitions: gr_engine_active = busy / step; sm_active: a warp that waits for
memory counts, so slightly below gr; tensor_active = flops / (peak · step); dram_active = bytes / (bandwidth · step);
sm_occupancy: 0.16 in matrix-product kernels, which hold few fat warps, 0.35 in memory-bound ones (an estimate between
the published 0.1–0.3 and the 0.24 seen on H100). Power = idle + the parts that activity adds, at most the limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...devices.profiles import Device
from ...devices.state import NORMAL, DeviceState
from ...engine.speculative import modelled_acceptance
from ...model.quantized.stored import AS_DTYPE
from ...model.shapes import BYTES_PER_VALUE
from ...settings.engine import EngineSettings
from ...step import NO_PADDING, StepPlan
from .quantized import ModelledWeights, modelled_calls, modelled_weights

READINGS = (
    "gr_engine_active_ratio", "sm_active_ratio", "sm_occupancy_ratio", "tensor_active_ratio", "dram_active_ratio",
    "dram_bytes", "power_watts", "sm_clock_hertz",
)  # fmt: skip

# What a step asks of each GPU: seconds of compute at achieved rates, flops, bytes, and seconds that the GPU is busy.
WORK_FIELDS = ("compute_s", "flops", "dram_bytes", "busy_s")
NO_WORK = (0.0, 0.0, 0.0, 0.0)
# What a step is made of: tokens computed, next tokens sampled, pairs of query and key, KV tokens read, requests in it,
# and how many of those are in prefill.
DEMAND_FIELDS = ("tokens", "samples", "pairs", "read_tokens", "sequences", "prefills")

_COLLECTIVE_S = 8e-6  # latency of one all-reduce
_SM_SHARE_OF_BUSY = 0.97  # the rest is kernel heads and tails
_OCCUPANCY_COMPUTE, _OCCUPANCY_MEMORY = 0.16, 0.35
# Shares of the power range that activity adds; together they pass 1 only when compute and memory are both saturated.
_POWER_GR, _POWER_TENSOR, _POWER_DRAM = 0.20, 0.85, 0.35

Number = Any  # a float, or an array of them for a stretch of decode steps: the formulas are the same


class ModelRunner:
    """Times steps for `settings` on `device`. `run` computes no tokens: ids are 0."""

    def __init__(self, settings: EngineSettings, device: Device) -> None:
        shape, gpus = settings.shape, settings.tensor_parallel
        value_bytes, kv_value_bytes = BYTES_PER_VALUE[settings.dtype], settings.kv_bytes_per_token
        self.device = device
        self._settings = settings
        self.clock_ratio = 1.0  # of the maximum SM clock; a throttled device runs below 1
        self.state = NORMAL
        self._compute_left_ratio = 1.0  # of tenants and clock: what is left of the peak
        self._step_factor = 1.0
        self.work: tuple[float, float, float, float] = NO_WORK  # WORK_FIELDS of the latest step
        self._peak_flops_per_s = device.flops_per_s(settings.dtype)
        self._matmul_flops_per_s = self._peak_flops_per_s * device.matmul_share
        self._attention_flops_per_s = self._peak_flops_per_s * device.attention_share
        if settings.dtype == "fp8":  # fp8 products reach less of their peak, and attention is computed in 16 bits
            self._matmul_flops_per_s = self._peak_flops_per_s * (device.fp8_matmul_share or device.matmul_share)
            self._attention_flops_per_s = device.bf16_flops_per_s * device.attention_share
        self._whole_bytes_per_s = self._bytes_per_s = device.bandwidth_bytes_per_s * device.bandwidth_share
        self._token_flops = 2.0 * shape.layers * shape.layer_parameters / gpus
        self._sample_flops = 2.0 * shape.head_parameters / gpus
        self._pair_flops = 4.0 * shape.layers * shape.heads * shape.head_dim / gpus
        self._weight_bytes = (shape.layers * shape.layer_parameters + shape.head_parameters) * value_bytes / gpus
        self._unpack_bytes = 0.0  # by the dequantizing fallback, before the products
        self.calls = modelled_calls(settings)
        if settings.weights != AS_DTYPE:
            self._weigh(modelled_weights(settings), gpus)
        self._kv_token_bytes = kv_value_bytes / gpus
        activations = shape.layers * (10 * shape.hidden + 4 * shape.intermediate) * value_bytes
        self._token_bytes = activations / gpus + self._kv_token_bytes
        self._collective_token_s = (
            2 * shape.layers * 2 * (gpus - 1) / gpus * shape.hidden * value_bytes / device.link_bytes_per_s
        )
        self._is_fitted = bool(device.per_token_s or device.per_prefill_s)
        self._collective_s = 2 * shape.layers * _COLLECTIVE_S if gpus > 1 else 0.0

    def _weigh(self, weights: ModelledWeights, gpus: int) -> None:
        self._weight_bytes = weights.read_bytes / gpus
        self._unpack_bytes = weights.unpack_bytes / gpus
        self._peak_flops_per_s *= weights.peak_factor
        self._matmul_flops_per_s *= weights.matmul_factor

    def restarted(self) -> None:
        """The engine begins a new life: its counts begin at zero."""
        if self.calls is not None:
            self.calls.restarted()

    def set_state(self, state: DeviceState) -> None:
        """From the next step on, the device is in this condition."""
        self.state = state
        self.clock_ratio = state.clock_ratio
        self._compute_left_ratio = state.compute_left_ratio
        self._bytes_per_s = self._whole_bytes_per_s * state.bandwidth_left_ratio
        self._step_factor = state.step_factor

    def run(self, plan: StepPlan) -> tuple[list[int], float]:
        """Ids (all 0) and the seconds that the step takes; `work` then describes it."""
        decodes = len(plan.decode)
        if self.calls is not None:
            self.calls.ran(1)
        if not plan.prefill and plan.padding is None and not plan.drafts:
            self.work, seconds = self._cost(decodes, decodes, plan.context_tokens, plan.context_tokens, decodes)
            return [0] * decodes, seconds
        tokens = samples = decodes
        pairs = read_tokens = plan.context_tokens
        for request, chunk in plan.prefill:
            start = request.computed_tokens
            tokens += chunk
            pairs += chunk * start + chunk * (chunk + 1) // 2
            read_tokens += start + chunk
            samples += start + chunk == request.total_tokens
        rows = decodes + len(plan.prefill)
        guessed = 0
        for request, draft in plan.drafts.items():
            drafted = len(draft)
            guessed += drafted
            pairs += drafted * (request.computed_tokens + 1) + drafted * (drafted + 1) // 2
            accepted = modelled_acceptance(request, drafted, self._settings)
            plan.accepted[request] = [0] * accepted
        extra = plan.padding or NO_PADDING
        self.work, seconds = self._cost(
            tokens + guessed + extra.tokens,
            samples + guessed + extra.samples,
            pairs + extra.pairs,
            read_tokens + guessed + extra.read_tokens,
            rows + len(plan.drafts) + extra.samples,
            len(plan.prefill),
        )
        return [0] * samples, seconds

    def seconds(self, demands: np.ndarray) -> np.ndarray:
        """Seconds of many steps at once, from what each asks for: columns of DEMAND_FIELDS."""
        tokens, samples, pairs, read_tokens, sequences, prefills = demands.T
        whole: np.ndarray = self._cost(tokens, samples, pairs, read_tokens, sequences, prefills, np.maximum)[1]
        return whole

    def decode_step(self, decodes: int, context_tokens: int) -> tuple[tuple[float, float, float, float], float]:
        """WORK_FIELDS and seconds of a pure decode step of `decodes` requests that read `context_tokens` in all."""
        return self._cost(decodes, decodes, context_tokens, context_tokens, decodes)

    def decode_stretch(self, decodes: Number, context_tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pure decode steps of `decodes` requests that read `context_tokens` in all: WORK_FIELDS [steps, 4] and seconds.

        Equal to what `run` says of each step, to the last bit.
        """
        work, seconds = self._cost(decodes, decodes, context_tokens, context_tokens, decodes, larger=np.maximum)
        columns = np.empty((len(context_tokens), len(WORK_FIELDS)))
        for index, column in enumerate(work):
            columns[:, index] = column
        return columns, seconds

    def _cost(
        self,
        tokens: Number,
        samples: Number,
        pairs: Number,
        read_tokens: Number,
        sequences: Number,
        prefills: Number = 0,
        larger: Callable[[Number, Number], Number] = max,
    ) -> tuple[tuple[Number, Number, Number, Number], Number]:
        matmul_flops = tokens * self._token_flops + samples * self._sample_flops
        attention_flops = pairs * self._pair_flops
        dram_bytes = read_tokens * self._kv_token_bytes + (self._weight_bytes + tokens * self._token_bytes)
        at_full_clock_s = attention_flops / self._attention_flops_per_s + matmul_flops / self._matmul_flops_per_s
        compute_s = at_full_clock_s / (self.clock_ratio * self._compute_left_ratio)
        collectives_s = self._collective_s + tokens * self._collective_token_s
        busy_s = larger(compute_s, dram_bytes / self._bytes_per_s) + collectives_s
        if self._unpack_bytes:
            busy_s = busy_s + self._unpack_bytes / self._bytes_per_s
            dram_bytes = dram_bytes + self._unpack_bytes
        host_s = self.device.launch_s + sequences * self.device.per_sequence_s
        if self._is_fitted:
            host_s = host_s + (tokens * self.device.per_token_s + prefills * self.device.per_prefill_s)
        seconds = (busy_s + host_s) * self._step_factor
        return (compute_s, attention_flops + matmul_flops, dram_bytes, busy_s), seconds

    def readings(self, work: np.ndarray, seconds: np.ndarray) -> dict[str, np.ndarray]:
        """READINGS for steps with `work` [steps, 4] that took `seconds` in all. A step of no length reads idle."""
        device = self.device
        compute_s, flops, dram_bytes, busy_s = work.T
        whole_s = np.where(seconds > 0, seconds, np.inf)
        state = self.state
        gr = np.minimum(busy_s / whole_s, 1.0)
        compute_share = np.minimum(compute_s / np.where(busy_s > 0, busy_s, 1.0), 1.0)
        occupancy = gr * (_OCCUPANCY_MEMORY + (_OCCUPANCY_COMPUTE - _OCCUPANCY_MEMORY) * compute_share)
        tensor = flops / (whole_s * self._peak_flops_per_s * self.clock_ratio)
        dram = dram_bytes / (whole_s * device.bandwidth_bytes_per_s)
        sm = gr * _SM_SHARE_OF_BUSY
        if state.taken_sm_ratio or state.taken_dram_ratio:  # a monitor of the device sees all tenants at once
            gr = np.maximum(gr, max(state.taken_sm_ratio, state.taken_dram_ratio))
            sm = np.minimum(sm * (1.0 - state.taken_sm_ratio) + state.taken_sm_ratio, 1.0)
            dram = np.minimum(dram + state.taken_dram_ratio * device.bandwidth_share, 1.0)
        activity = _POWER_GR * gr + (_POWER_TENSOR * tensor + _POWER_DRAM * dram) * self.clock_ratio
        watts = device.idle_power_watts + (device.power_limit_watts - device.idle_power_watts) * np.minimum(
            activity, 1.0
        )
        clock = np.full(len(seconds), device.max_sm_clock_hz * self.clock_ratio)
        columns = (gr, sm, occupancy, tensor, dram, dram_bytes, watts, clock)
        return dict(zip(READINGS, columns, strict=True))

    def idle_readings(self) -> dict[str, float]:
        """What the device shows between steps: clocks stay up, unless its condition says otherwise."""
        state, device = self.state, self.device
        taken = max(state.taken_sm_ratio, state.taken_dram_ratio)
        power_range = device.power_limit_watts - device.idle_power_watts
        activity = _POWER_GR * taken + _POWER_DRAM * state.taken_dram_ratio + _POWER_TENSOR * state.taken_sm_ratio / 2
        return {
            **dict.fromkeys(READINGS, 0.0),
            "gr_engine_active_ratio": taken,
            "sm_active_ratio": state.taken_sm_ratio,
            "dram_active_ratio": state.taken_dram_ratio * device.bandwidth_share,
            "power_watts": device.idle_power_watts + power_range * min(activity, 1.0),
            "sm_clock_hertz": device.max_sm_clock_hz * min(self.clock_ratio, state.idle_clock_ratio),
        }

    def hung_readings(self) -> dict[str, float]:
        """What it shows while a kernel never ends: one warp spins, the GPU looks used, but nothing is computed."""
        sm = 1.0 / self.device.sm_count
        power_range = self.device.power_limit_watts - self.device.idle_power_watts
        return {
            **self.idle_readings(),
            "gr_engine_active_ratio": 1.0,
            "sm_active_ratio": sm,
            "sm_occupancy_ratio": sm / 64,
            "power_watts": self.device.idle_power_watts + 0.1 * power_range,
        }


class PacedRunner:
    """A ModelRunner in real time: `run` lets the modelled seconds pass before it returns."""

    def __init__(self, model: ModelRunner, wait: Callable[[float], object]) -> None:
        self.model = model
        self._wait = wait

    def run(self, plan: StepPlan) -> tuple[list[int], float]:
        """As ModelRunner.run, after that time has passed."""
        tokens, seconds = self.model.run(plan)
        self._wait(seconds)
        return tokens, seconds
