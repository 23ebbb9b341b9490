"""`simulate`: play a scenario in virtual time on a modelled device and write what an agent would have seen."""

from __future__ import annotations

import gzip
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import click

from ..demand.shipped import find_scenario
from ..devices.profile_file import device_named
from ..devices.profiles import DEVICES
from .world import MODES


@click.command()
@click.argument("scenario")
@click.option(
    "--device",
    default="h100",
    show_default=True,
    metavar="NAME|FILE",
    callback=lambda _ctx, _param, name: _known_device(name),
    help=f"Modelled device: {', '.join(sorted(DEVICES))}, or a profile that calibrate wrote (*.toml).",
)
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0, 2**32 - 1), help="Seed of the demand.")
@click.option("--duration", "duration_s", type=click.FloatRange(1), help="Seconds to play; default: the scenario's.")
@click.option("--telemetry", "mode", default="full", show_default=True, type=click.Choice(MODES), help="What is shown.")
@click.option("--cure/--no-cure", default=False, help="Apply the scenario's [cure] to the same demand.")
@click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="Replace a key, e.g. engine.max_num_seqs=32."
)
@click.option("--out", default="-", show_default=True, help="File to write (gzip if it ends in .gz), or - for stdout.")
def simulate(
    scenario: str,
    device: str,
    seed: int,
    duration_s: float | None,
    mode: str,
    cure: bool,
    changes: tuple[str, ...],
    out: str,
) -> None:
    """Play SCENARIO, a path or the name of one that is shipped, and write its world stream (docs/capture.md)."""
    from ..demand.scenario import ScenarioError, load_scenario
    from .assemble import simulate as play

    path = find_scenario(scenario)
    try:
        pairs = [_pair(change) for change in changes]
        read = load_scenario(path, device, pairs)
        if duration_s is not None and duration_s > read.duration_s:
            read = load_scenario(path, device, [*pairs, ("duration_s", repr(duration_s))])
        if cure and read.cure is None:
            raise ScenarioError(str(path), "cure", "is missing")
        read = read.cured() if cure else read
    except ScenarioError as error:
        raise click.UsageError(str(error)) from None
    until_s = read.duration_s if duration_s is None else duration_s
    try:
        with _opened(out) as stream, _progress(until_s, scenario) as on_poll:
            play(read, stream, device=device, seed=seed, mode=mode, until_s=until_s, on_poll=on_poll)
    except BrokenPipeError:
        # Whoever read has seen enough. Python would complain again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        raise click.UsageError(f"{out}: {error.strerror or error}") from None
    except ValueError as error:
        raise click.UsageError(f"{path}: engine: {error}") from None


def _known_device(name: str) -> str:
    try:
        device_named(name)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return name


def _pair(change: str) -> tuple[str, str]:
    key, equals, value = change.partition("=")
    if not (key and equals):
        raise click.UsageError(f"--set {change}: needs KEY=VALUE")
    return key.strip(), value.strip()


@contextmanager
def _opened(out: str) -> Iterator[IO[bytes]]:
    if out == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    elif out.endswith(".gz"):
        with Path(out).open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as packed:
            yield packed
    else:
        with Path(out).open("wb", buffering=1 << 20) as file:
            yield file


@contextmanager
def _progress(until_s: float, name: str) -> Iterator[Callable[[float], None] | None]:
    """A line on stderr that moves, for people only."""
    if not sys.stderr.isatty():
        yield None
        return
    begun = shown = time.monotonic()

    def show(at_s: float) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown >= 0.2:
            shown = now
            sys.stderr.write(f"\r{name}: {at_s:.0f} of {until_s:.0f} s, {at_s / (now - begun):.0f} × real time ")
            sys.stderr.flush()

    yield show
    sys.stderr.write("\r\033[K")
