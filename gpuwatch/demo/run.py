"""`gpuwatch demo`: play a scenario, watch it, and leave a verdict and a postmortem.

Progress goes to stdout; with `--json` stdout carries the verdict alone and progress goes to stderr.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from ..config import Config
from ..model import Verdict
from ..recording.capsule import CapsuleError
from .files import FILES, write_files
from .interrupts import Interrupts
from .problem import DemoError
from .screen import screen_for
from .stage import Stage

DEFAULT_OUT = "gpuwatch-demo"
INTERRUPTED = 130


def run_demo(
    scenario: str = "batch_thrashing",
    device: str = "torch",
    seed: int = 1,
    out_dir: str | Path = DEFAULT_OUT,
    json_output: bool = False,
    config: Config | None = None,
) -> int:
    """Run the demo and return the exit code: 0 done, 2 cannot run (said on stderr), 130 interrupted (files written)."""
    folder = Path(out_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _check_parts(device)
        return _run(scenario, device, seed, folder, json_output, config or Config())
    except (DemoError, CapsuleError) as error:
        sys.stderr.write(f"Error: {error}\n")
    except OSError as error:
        sys.stderr.write(f"Error: {error.filename or folder}: {error.strerror or error}\n")
    return 2


def _run(scenario: str, device: str, seed: int, folder: Path, json_output: bool, config: Config) -> int:
    progress = sys.stderr if json_output else sys.stdout
    screen = screen_for(progress, f"gpuwatch demo · {scenario} · {device} · seed {seed}")
    stage, interrupts = Stage(screen, virtual=device != "torch"), Interrupts()
    interrupted, problem = False, None
    for name in FILES:
        (folder / name).unlink(missing_ok=True)  # never an old verdict beside a new capsule
    try:
        with interrupts.caught():
            _play(scenario, device, seed, folder, config, stage, interrupts)
    except KeyboardInterrupt:
        interrupted = True
    except DemoError as error:
        problem = error
    finally:
        stage.close()
    if stage.seconds:
        _tell(write_files(folder), folder, json_output)
    if problem is not None:
        seen = f"\nWhat was seen until then is in {folder}." if stage.seconds else ""
        raise DemoError(f"{problem}{seen}") from problem
    return INTERRUPTED if interrupted else 0


def _play(
    scenario: str, device: str, seed: int, folder: Path, config: Config, stage: Stage, interrupts: Interrupts
) -> None:
    if device == "torch":
        from .real import play as play_real

        play_real(scenario, seed, folder, config, stage)
    else:
        from .modelled import play as play_modelled

        play_modelled(scenario, device, seed, folder, config, stage, interrupts)


def _tell(verdict: Verdict, folder: Path, json_output: bool) -> None:
    """The verdict on one screen and where the files are; with `--json` the verdict alone."""
    from ..incidents.verdict import text, to_json

    if json_output:
        sys.stdout.write(to_json(verdict).decode() + "\n")
    else:
        paths = "\n".join(f"  {folder / name}" for name in FILES)
        sys.stdout.write(f"\n{text(verdict)}\n{paths}\n")
    sys.stdout.flush()


def _check_parts(device: str) -> None:
    """The engine is an extra: say what to install before anything starts."""
    if find_spec("engine_shim") is None:
        raise DemoError("the bundled engine (package engine_shim) is not importable: run from a checkout or the wheel")
    if device == "torch" and find_spec("torch") is None:
        raise DemoError(
            "--device torch runs the real engine and needs PyTorch: pip install 'gpuwatch[engine]' "
            "(or `make setup` in a checkout), or play a modelled device with --device h100"
        )
