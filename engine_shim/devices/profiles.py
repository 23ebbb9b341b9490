"""Device profiles for the roofline runner: peaks from data sheets, and what software achieves of them.

Peaks are dense (vendor sheets often print the sparse number, twice as much) and per GPU: memory in bytes, bandwidth in
bytes per second, floating-point operations per second. What is achieved of a peak is a property of kernels, not of the
sheet; the shares are those that are published: 0.92 of the bandwidth and 0.78–0.82 of the bf16 peak for large
matrix products on H100 (pytorch/ao roofline_utils, stas00/ml-engineering), less on smaller parts. DRAM activity
above 0.8–0.9 is not seen in practice, so 0.85 is used. docs/modelled-device.md has the formulas, and what they predict
next to what was published. A profile can also be a file, fitted to a real device (profile_file.py, calibrate/command.py).
"""

from __future__ import annotations

from dataclasses import dataclass

GB = 1e9
TERA = 1e12
# Set where it predicts the published TensorRT-LLM 1.0 runs of an 8B model best; those of a 70B model were not looked at.
_HOPPER_FP8 = 0.5


@dataclass(frozen=True)
class Device:
    """One GPU model, and the host that drives it."""

    name: str
    product: str  # the name that the driver reports
    memory_bytes: float
    bandwidth_bytes_per_s: float
    bf16_flops_per_s: float
    fp8_flops_per_s: float  # equal to bf16 where the part has no fp8 units
    sm_count: int
    max_sm_clock_hz: float
    idle_sm_clock_hz: float
    power_limit_watts: float
    idle_power_watts: float
    link_bytes_per_s: float  # to its peers, one direction; PCIe where there is no NVLink
    matmul_share: float = 0.75  # of the flops peak, in large matrix products
    attention_share: float = 0.45  # of the flops peak, in prefill attention
    bandwidth_share: float = 0.85
    launch_s: float = 0.0012  # launches and host work of one step, whatever its size
    per_sequence_s: float = 8e-6  # host work for each sequence in the step: sampling, block tables, detokenising
    # What only a fitted profile knows; eager code on a CPU needs them, compiled code on a GPU hides them.
    per_token_s: float = 0.0  # for each token computed: element-wise operations that nothing fuses
    per_prefill_s: float = 0.0  # for each prefill chunk in the step: calls of its own
    fp32_flops_per_s: float = 0.0  # 0: fp32 runs as TF32, at half of bf16
    fp8_matmul_share: float = 0.0  # of the fp8 peak, in large matrix products; 0: matmul_share

    def flops_per_s(self, dtype: str) -> float:
        """Peak for `dtype`."""
        if dtype == "fp32":
            return self.fp32_flops_per_s or self.bf16_flops_per_s / 2
        return self.fp8_flops_per_s if dtype == "fp8" else self.bf16_flops_per_s


DEVICES = {
    device.name: device
    for device in (
        Device(
            "a10", "NVIDIA A10", 24 * GB, 0.600 * TERA, 125 * TERA, 125 * TERA,
            72, 1.695e9, 0.21e9, 150, 16, 25 * GB, 0.60,
        ),
        Device(
            "l4", "NVIDIA L4", 24 * GB, 0.300 * TERA, 121 * TERA, 242 * TERA,
            58, 2.04e9, 0.21e9, 72, 13, 25 * GB, 0.55,
        ),
        Device(
            "l40s", "NVIDIA L40S", 48 * GB, 0.864 * TERA, 362 * TERA, 733 * TERA,
            142, 2.52e9, 0.21e9, 350, 35, 25 * GB, 0.60,
        ),
        Device(
            "a100", "NVIDIA A100-SXM4-80GB", 80 * GB, 2.039 * TERA, 312 * TERA, 312 * TERA,
            108, 1.41e9, 0.21e9, 400, 55, 300 * GB,
        ),
        Device(
            "h100", "NVIDIA H100 80GB HBM3", 80 * GB, 3.35 * TERA, 989 * TERA, 1979 * TERA,
            132, 1.98e9, 0.345e9, 700, 70, 450 * GB, fp8_matmul_share=_HOPPER_FP8,
        ),
        Device(
            "h200", "NVIDIA H200", 141 * GB, 4.8 * TERA, 989 * TERA, 1979 * TERA,
            132, 1.98e9, 0.345e9, 700, 75, 450 * GB, fp8_matmul_share=_HOPPER_FP8,
        ),
        Device(
            "b200", "NVIDIA B200", 180 * GB, 7.67 * TERA, 2250 * TERA, 4500 * TERA,
            148, 1.965e9, 0.345e9, 1000, 140, 900 * GB,
        ),
    )
}  # fmt: skip
