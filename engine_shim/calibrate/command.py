"""`python -m engine_shim.calibrate --out profile.toml`: fits a device profile to a real device, in under three minutes.

It measures what the device can do at best, times some sixty steps of a torch model of the chosen shape, fits the
profile to two thirds of them, says how well it predicts the others, and writes a file that `serve --runner model
--device FILE` and `simulate --device FILE` accept. A fitted profile speaks for the dtype and kernels that were measured;
other model shapes follow by the formulas of runners/modelled/runner.py, which is what they are for.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from .. import __version__
from ..devices.profile_file import device_text
from ..devices.profiles import DEVICES, Device
from ..settings.engine import EngineSettings
from .fit import Fit, errors_of, fit_device
from .measure import CpuClock, Peaks, peaks, probe_seconds
from .probes import Probe, probes

if TYPE_CHECKING:
    import torch

BLOCK_TOKENS = 16
MOST_TOKENS = 40_000  # of KV in one step; less where the device has no room for it
HELD_OUT = 3  # every third probe is not fitted to


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted profile and how it did: median relative errors on the probes it was fitted to, and on the others."""

    device: Device
    probes: list[Probe]
    seconds: list[float]
    fitted_error_ratio: float
    held_out_error_ratio: float


@click.command()
@click.option("--runner", type=click.Choice(["torch"]), default="torch", show_default=True, help="What is measured.")
@click.option(
    "--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="Profile to write (*.toml)."
)
@click.option("--device", default="cpu", show_default=True, help="Torch device: cpu, cuda, cuda:1, …")
@click.option("--model", help="Shape whose steps are timed: tiny, 1b, 7b, …; default: tiny on cpu, 1b elsewhere.")
@click.option("--dtype", type=click.Choice(["fp32", "bf16", "fp16"]), help="Default: fp32 on cpu, bf16 elsewhere.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1), help="CPU threads of torch.")
@click.option("--seconds", default=60.0, show_default=True, type=click.FloatRange(0, 150), help="Time for the steps.")
@click.option("--name", default="", help="Name of the profile; default: from the device.")
def main(
    runner: str, out: Path, device: str, model: str | None, dtype: str | None, threads: int, seconds: float, name: str
) -> None:
    """Fit a device profile to a real device and write it as a file."""
    if out.suffix != ".toml":
        raise click.UsageError(f"--out {out}: the name of a profile must end in .toml")
    try:
        found, remarks = calibrate_torch(device, model, dtype, threads, seconds, name)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    try:
        out.write_text(device_text(found.device, remarks), encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"{out}: {error.strerror or error}") from None
    click.echo(_report(found, out))


def calibrate_torch(
    device: str, model: str | None, dtype: str | None, threads: int, seconds: float, name: str = ""
) -> tuple[Calibration, dict[str, str | int | float]]:
    """Measure and fit; the profile, and remarks for its file. ValueError if the device or model cannot be used."""
    import torch

    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {device!r} is not usable: {str(error).splitlines()[0]}") from None
    torch.set_num_threads(threads)
    model = model or ("tiny" if place.type == "cpu" else "1b")
    dtype = dtype or ("fp32" if place.type == "cpu" else "bf16")
    values = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    settings = EngineSettings.from_table({"model": model, "dtype": dtype, "kv_dtype": dtype, "kv_pool_tokens": 16})
    measured = peaks(place, values)
    base = base_profile(place, measured, dtype, name)
    most = min(MOST_TOKENS, _room_tokens(base, settings))
    chosen = probes(most, most)
    alone = place.type == "cpu" and threads == 1
    timing = torch_runner(settings, values, device, max(probe.blocks(BLOCK_TOKENS) for probe in chosen), alone)
    times = probe_seconds(
        chosen, timing, block_tokens=BLOCK_TOKENS, vocab=settings.shape.vocab, seconds=seconds
    )  # fmt: skip
    found = fit_probes(base, settings, chosen, times)
    remarks: dict[str, str | int | float] = {
        "by": f"engine_shim {__version__}, torch {torch.__version__}", "on": base.product, "torch_device": device,
        "threads": threads, "model": model, "dtype": dtype, "probes": len(chosen),
        "seconds_of": "process CPU" if alone else "wall clock",
        "peak_flops_per_s": measured.flops_per_s, "peak_bytes_per_s": measured.bytes_per_s,
        "fitted_median_error_ratio": found.fitted_error_ratio,
        "held_out_median_error_ratio": found.held_out_error_ratio,
    }  # fmt: skip
    return found, remarks


def fit_probes(base: Device, settings: EngineSettings, chosen: list[Probe], seconds: list[float]) -> Calibration:
    """Fit to two thirds of the probes and judge by the rest; the profile is then fitted to all of them."""
    rows = [(probe.demand(), taken) for probe, taken in zip(chosen, seconds, strict=True)]
    kept = [row for index, row in enumerate(rows) if index % HELD_OUT != HELD_OUT - 1]
    rest = rows[HELD_OUT - 1 :: HELD_OUT]
    judged: Fit = fit_device(base, settings, *zip(*kept, strict=True))
    held_out = errors_of(judged.device, settings, *zip(*rest, strict=True))
    final = fit_device(base, settings, *zip(*rows, strict=True))
    return Calibration(final.device, chosen, seconds, final.median_error_ratio, float(np.median(held_out)))


def base_profile(place: torch.device, measured: Peaks, dtype: str, name: str) -> Device:
    """What is known before the fit: a data sheet where the product has one here, otherwise what was measured."""
    import torch

    if place.type == "cuda":
        properties = torch.cuda.get_device_properties(place)
        known = next((d for d in DEVICES.values() if d.product == properties.name), None)
        if known is not None:
            return replace(known, name=name or f"{known.name}-fitted")
        product, memory, units = properties.name, float(properties.total_memory), properties.multi_processor_count
    else:
        product, units = _cpu_name(), os.cpu_count() or 1
        memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    nan = float("nan")
    return Device(
        name=name or f"{place.type}-fitted", product=product, memory_bytes=memory,
        bandwidth_bytes_per_s=measured.bytes_per_s, bf16_flops_per_s=measured.flops_per_s,
        fp8_flops_per_s=measured.flops_per_s, sm_count=units, max_sm_clock_hz=1e9, idle_sm_clock_hz=1e9,
        power_limit_watts=nan, idle_power_watts=nan, link_bytes_per_s=measured.bytes_per_s,
        fp32_flops_per_s=measured.flops_per_s if dtype == "fp32" else 0.0,
    )  # fmt: skip


def _room_tokens(base: Device, settings: EngineSettings) -> int:
    """KV that fits beside the weights in half of the memory: this is a visit, not a service."""
    room = base.memory_bytes / 2 - settings.shape.weight_bytes(settings.dtype)
    tokens = int(room // settings.kv_bytes_per_token)
    if tokens < 1024:
        raise ValueError(f"model {settings.model} leaves no room for KV on {base.product}; choose a smaller one")
    return tokens


def torch_runner(settings: EngineSettings, values: Any, device: str, blocks: int, alone: bool) -> Any:
    """A runner of the seeded model; `alone`: it tells CPU seconds, not those of the clock on the wall."""
    from ..clock import RealClock
    from ..model.config import config_of
    from ..model.weights import seeded
    from ..runners.torch.runner import TorchRunner

    return TorchRunner(
        seeded(config_of(settings.shape), 0, values, device), blocks, BLOCK_TOKENS, CpuClock() if alone else RealClock()
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names and names[0] else "CPU"


def _report(found: Calibration, out: Path) -> str:
    device, seconds = found.device, found.seconds
    flops = max(device.bf16_flops_per_s, device.fp32_flops_per_s)
    return f"""\
{device.product}: {len(found.probes)} steps of {min(seconds) * 1e3:.2f} to {max(seconds) * 1e3:.1f} ms
matrix products  {flops * device.matmul_share / 1e9:12,.1f} GFLOP/s
attention        {flops * device.attention_share / 1e9:12,.1f} GFLOP/s
memory           {device.bandwidth_bytes_per_s * device.bandwidth_share / 1e9:12,.1f} GB/s
a step           {device.launch_s * 1e6:12,.0f} µs
each sequence    {device.per_sequence_s * 1e6:12,.1f} µs
each token       {device.per_token_s * 1e6:12,.2f} µs
each prefill     {device.per_prefill_s * 1e6:12,.0f} µs
median error of step times: {found.fitted_error_ratio:.1%}; {found.held_out_error_ratio:.1%} on a third that was not fitted to
wrote {out}"""
