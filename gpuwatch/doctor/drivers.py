"""The doctor's look at drivers: how many devices of which model answer, which do not, and what those that do cannot tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ..config import Config

_VENDORS = ("nvml", "amd", "intel")
_NO_DRIVER = "no NVIDIA, AMD or Intel driver can be loaded here: nothing is seen of devices"
_GIVE_DRIVER = (
    "in a container: the NVIDIA runtime class and NVIDIA_VISIBLE_DEVICES=all; from elsewhere: gpu_url = a page of "
    "dcgm-exporter or of the node's agent"
)
_NO_GPM = "SM, tensor and memory activity"
_GIVE_ACTIVITY = "gpu_url = a dcgm-exporter with profiling fields shows it (gpuwatch doctor --print-counters)"


class DriverLook(msgspec.Struct, frozen=True):
    """One vendor's driver; `name` is empty where there is none. `models`: how many of each; `instances`: of MIG.

    `unreachable`: devices that do not answer, and why. `lacking`: what some cannot tell, and on how many.
    """

    name: str
    models: dict[str, int] = {}
    instances: int = 0
    unreachable: dict[str, str] = {}
    lacking: dict[str, int] = {}
    change: str = ""


def driver_wanted(config: Config) -> bool:
    """Whether an agent so configured is to see devices through a driver."""
    return config.role != "engine" and any((config.gpu.nvml, config.gpu.amd, config.gpu.intel))


def drivers_of(sources: Sequence[Any], wanted: bool) -> list[DriverLook]:
    """What each driver's source knows; where there is none and one is `wanted`, that."""
    found = [_driver(source) for source in sources if source.name in _VENDORS]
    return found or ([DriverLook("", change=_GIVE_DRIVER)] if wanted else [])


def _driver(source: Any) -> DriverLook:
    devices = source.devices()
    unreachable = source.unreachable() if hasattr(source, "unreachable") else {}
    boards = {gpu: facts for gpu, facts in devices.items() if "/" not in gpu}
    models = Counter(facts.get("model") or "without a name" for gpu, facts in boards.items() if gpu not in unreachable)
    lacking = Counter(
        f"{_NO_GPM}: {facts['gpm'].removeprefix('no: ')}"
        for facts in boards.values()
        if facts.get("gpm", "yes") != "yes" and not facts.get("mig_instances")
    )
    change = _GIVE_ACTIVITY if lacking else ""
    return DriverLook(
        source.name, dict(models), len(devices) - len(boards), dict(unreachable), dict(lacking), change
    )  # fmt: skip


def driver_lines(drivers: Iterable[DriverLook]) -> list[str]:
    """The same for people; text from outside is not yet safe for a terminal."""
    out: list[str] = []
    for driver in drivers:
        if not driver.name:
            out += [f"  --  {_NO_DRIVER}", f"      {driver.change}"]
            continue
        count = sum(driver.models.values())
        models = ", ".join(f"{number} × {model}" for model, number in driver.models.items())
        mig = f", {driver.instances} MIG instances" if driver.instances else ""
        out.append(f"  {'ok' if count else '--'}  {driver.name}: {models or 'no device answers'}{mig}")
        out += [f"  --  {gpu} does not answer: {why}" for gpu, why in driver.unreachable.items()]
        out += [f"      {number} of {count} without {what}" for what, number in driver.lacking.items()]
        if driver.change:
            out.append(f"      {driver.change}")
    return ["", "devices", *out] if out else []
