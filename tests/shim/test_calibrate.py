"""Device profiles as files, and how a calibration finds one: on made-up devices exactly, on this machine's CPU for real."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from engine_shim.calibrate.command import fit_probes
from engine_shim.calibrate.command import main as calibrate
from engine_shim.calibrate.fit import fit_device
from engine_shim.calibrate.measure import probe_seconds
from engine_shim.calibrate.probes import Probe, probes
from engine_shim.cli import main as shim
from engine_shim.clock import VirtualClock
from engine_shim.devices.profile_file import device_named, device_text, read_device
from engine_shim.devices.profiles import DEVICES, Device
from engine_shim.runners.modelled.runner import ModelRunner
from engine_shim.serving import ServeOptions, build
from engine_shim.settings.engine import EngineSettings
from engine_shim.step import StepPlan

SETTINGS = EngineSettings.from_table({"model": "1b", "kv_pool_tokens": 16})


def fitted_like(base: Device) -> Device:
    """A device that differs from its data sheet in everything that a fit looks for."""
    return replace(
        base, matmul_share=0.55, attention_share=0.2, bandwidth_share=0.6, launch_s=0.0021, per_sequence_s=30e-6,
        per_token_s=1e-6, per_prefill_s=200e-6,
    )  # fmt: skip


def test_a_fit_finds_the_device_that_made_the_times() -> None:
    """With 3 % of noise on every step, unseen steps are predicted to about that."""
    chosen = probes(40_000, 4_000)
    truth = ModelRunner(SETTINGS, fitted_like(DEVICES["a10"])).seconds(np.array([p.demand() for p in chosen]))
    noise = np.exp(np.random.default_rng(3).normal(0, 0.03, len(chosen)))
    found = fit_probes(DEVICES["a10"], SETTINGS, chosen, (truth * noise).tolist())
    assert found.held_out_error_ratio < 0.06
    # Steps that no probe is like: launches and weights, and the KV that a large batch reads.
    for probe in (Probe((1,)), Probe((3000,) * 13), Probe((), ((0, 2000),))):
        real, predicted = (
            ModelRunner(SETTINGS, d).run(probe.plan(16, 1000))[1] for d in (fitted_like(DEVICES["a10"]), found.device)
        )
        assert predicted == pytest.approx(real, rel=0.1)


def test_a_disturbed_measurement_does_not_decide() -> None:
    chosen = probes(40_000, 4_000)
    demands = [p.demand() for p in chosen]
    seconds = ModelRunner(SETTINGS, fitted_like(DEVICES["a10"])).seconds(np.array(demands))
    seconds[::9] *= 6
    fit = fit_device(DEVICES["a10"], SETTINGS, demands, seconds.tolist())
    assert fit.median_error_ratio < 0.05


def test_a_fit_needs_enough_steps_that_took_time() -> None:
    with pytest.raises(ValueError, match="at least 7 measured steps, not 2"):
        fit_device(DEVICES["a10"], SETTINGS, [(1.0,) * 6] * 2, [1.0, 2.0])
    with pytest.raises(ValueError, match="took no time"):
        fit_device(DEVICES["a10"], SETTINGS, [(1.0,) * 6] * 8, [1.0] * 7 + [0.0])


@pytest.mark.parametrize("probe", probes(40_000, 4_000)[::5], ids=lambda p: f"{len(p.contexts)}+{len(p.chunks)}")
def test_a_probe_asks_for_what_its_step_does(probe: Probe) -> None:
    """The numbers that are fitted to are those of the step that was run."""
    runner = ModelRunner(SETTINGS, fitted_like(DEVICES["l4"]))
    tokens, seconds = runner.run(probe.plan(16, 1000))
    assert len(tokens) == len(probe.contexts) + len(probe.chunks)
    assert runner.seconds(np.array([probe.demand()]))[0] == pytest.approx(seconds, rel=1e-12)


def test_requests_of_a_probe_have_blocks_of_their_own() -> None:
    probe = Probe(contexts=(17, 16), chunks=((5, 30),))
    plan = probe.plan(16, 50)
    held = [block for request in [*plan.decode, plan.prefill[0][0]] for block in request.blocks]
    assert sorted(held) == list(range(probe.blocks(16))) == list(range(6))


def test_a_probe_counts_what_it_takes_on_a_quiet_machine() -> None:
    """Rounds begin while there is time left; a probe's time is the lower quartile of its rounds."""
    clock = VirtualClock()

    class Disturbed:
        runs = 0

        def run(self, plan: StepPlan) -> tuple[list[int], float]:
            self.runs += 1
            clock.advance_to(clock.now() + 0.5)
            return [0], 0.010 + (0.2 if self.runs % 2 else 0.0)

    times = probe_seconds([Probe((8,))], Disturbed(), block_tokens=16, vocab=9, seconds=5, monotonic=clock.now)
    assert times == [pytest.approx(0.010)]


def test_this_machine_can_be_calibrated(tmp_path: Path) -> None:
    """The command times the real torch runner and writes a file that `simulate` and `serve` take as a device."""
    profile = tmp_path / "cpu.toml"
    ran = CliRunner().invoke(calibrate, ["--out", str(profile), "--seconds", "1"])
    assert ran.exit_code == 0, ran.output
    assert "median error of step times" in ran.output
    device = device_named(str(profile))
    assert device.name == "cpu-fitted"
    seconds = ModelRunner(EngineSettings(), device).run(Probe((64,) * 8).plan(16, 256))[1]
    assert 0.0002 < seconds < 0.2
    world = tmp_path / "world.jsonl"
    arguments = ["simulate", "healthy_steady", "--device", str(profile), "--duration", "2", "--out", str(world)]
    ran = CliRunner().invoke(shim, [*arguments, "--set", "engine.model='tiny'", "--set", "engine.kv_pool_tokens=8992"])
    assert ran.exit_code == 0, ran.output
    assert '"device":"cpu-fitted"' in world.read_text().splitlines()[0]
    serving = build(ServeOptions(runner="model", device=str(profile)), {"model": "tiny"})
    assert serving.telemetry.info.device == "cpu-fitted"


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    """What is not known stays unknown: a CPU's power is not a number."""
    path = tmp_path / "d.toml"
    device = replace(fitted_like(DEVICES["h100"]), name="mine", power_limit_watts=float("nan"))
    path.write_text(device_text(device, {"by": 'a "test"'}))
    read = read_device(path)
    assert np.isnan(read.power_limit_watts)
    assert replace(read, power_limit_watts=1.0) == replace(device, power_limit_watts=1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[device", "Expected"),
        ("x = 1", r"needs a table \[device\]"),
        ("[device]\nname = 'a'", "device.product is missing"),
        ("[device]\nlike = 'v100'", "device.like must be one of"),
        ("[device]\nlike = 'h100'\nbandwith = 1.0", "device.bandwith is not a known key"),
        ("[device]\nlike = 'h100'\nlaunch_s = -1.0", "device.launch_s must be above 0"),
        ("[device]\nlike = 'h100'\nsm_count = 'many'", "device.sm_count needs a number"),
        ("[device]\nlike = 'h100'\nmemory_bytes = nan", "device.memory_bytes needs a number"),
        ("[device]\nlike = 'h100'\nname = 7", "device.name needs a text"),
    ],
)
def test_a_bad_profile_is_refused_with_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as refused:
        device_named(str(path))
    assert str(path) in str(refused.value)


def test_a_profile_may_build_on_a_known_one(tmp_path: Path) -> None:
    path = tmp_path / "half.toml"
    path.write_text("[device]\nlike = 'h100'\nname = 'half'\nbandwidth_bytes_per_s = 1.675e12\n")
    assert device_named(str(path)) == replace(DEVICES["h100"], name="half", bandwidth_bytes_per_s=1.675e12)


def test_what_cannot_be_used_is_said_at_start(tmp_path: Path) -> None:
    for arguments, message in (
        (["--out", "p.json"], "must end in .toml"),
        (["--out", str(tmp_path / "p.toml"), "--device", "cuda:9"], "'cuda:9' is not usable"),
        (["--out", str(tmp_path / "p.toml"), "--model", "9b"], "'9b' is not a known shape"),
        (["--out", str(tmp_path / "p.toml"), "--model", "70b"], "leaves no room for KV"),
    ):
        ran = CliRunner().invoke(calibrate, arguments)
        assert ran.exit_code == 2
        assert message in ran.output
    ran = CliRunner().invoke(shim, ["simulate", "healthy_steady", "--device", "v100"])
    assert ran.exit_code == 2
    assert "device 'v100' is not known" in ran.output
