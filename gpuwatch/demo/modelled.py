"""The demo on a modelled device: the bundled engine plays a scenario in virtual time, gpuwatch reads what it shows.

The two meet on a pipe, in the capture format (docs/capture.md): the agent knows nothing else of the engine. Each second
goes to the capsule, rounded as the capsule holds it, and then to the pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import Config
from ..model import Batch
from ..recording.capsule import CapsuleWriter
from ..recording.quantize import quantized
from .child import Child, problem_in
from .files import CAPSULE
from .interrupts import Interrupts
from .problem import DemoError
from .stage import Stage

if TYPE_CHECKING:
    from ..pipeline import Pipeline


def play(
    scenario: str, device: str, seed: int, folder: Path, config: Config, stage: Stage, interrupts: Interrupts
) -> None:
    """Play the whole scenario and leave its capsule. Raises DemoError with the engine's own words when it fails.

    A run that ends early (KeyboardInterrupt, DemoError) leaves a whole capsule of the seconds until then, if any.
    """
    from ..pipeline import Pipeline

    meta: dict[str, str | float] = {"scenario": scenario, "device": device, "seed": seed}
    writer = CapsuleWriter(folder / CAPSULE, config, clock="virtual", meta=meta)
    try:
        _watch(_engine(scenario, device, seed), Pipeline(config), writer, stage, interrupts)
    finally:
        if writer.calls:
            writer.close()
        else:
            writer.abandon()


def _engine(scenario: str, device: str, seed: int) -> Child:
    return Child(["-m", "engine_shim", "simulate", scenario, "--device", device, "--seed", str(seed), "--out", "-"])


def _watch(engine: Child, pipeline: Pipeline, writer: CapsuleWriter, stage: Stage, interrupts: Interrupts) -> None:
    from ..sources.files.capture import CaptureError, calls, read_capture

    with engine:
        try:
            capture = read_capture(engine.output, "the engine's stream")
            for now, batches in calls(capture):
                with interrupts.held():
                    _second(now, batches, pipeline, writer, stage)
        except CaptureError as error:
            raise DemoError(problem_in(engine.complaint()) or str(error)) from error
        code = engine.process.wait()
        if code or not capture.complete:
            raise DemoError(problem_in(engine.complaint()) or f"the engine's stream was cut short (exit code {code})")


def _second(now: float, batches: Sequence[Batch], pipeline: Pipeline, writer: CapsuleWriter, stage: Stage) -> None:
    call = quantized(now, batches)
    writer.append(*call)
    stage.show(pipeline.step(*call), pipeline)
