"""Builds the machine's sources from the configuration: one for the machine, one for each engine that may run on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...config import Config
from ...model import Subject
from ..gpu.ownership.clues import Pid
from ..poll import Source
from ..ring.rings import EngineRings
from .engine_process import EngineProcess
from .source import EngineHostSource, HostSource
from .world import World


def world_of(config: Config) -> World:
    """Where the machine's files are."""
    machine = config.machine
    return World(
        Path(machine.proc), Path(machine.sys), Path(machine.cgroup_root) if machine.cgroup_root else None, machine.paths,
        config.state_path,
    )  # fmt: skip


def engine_processes(config: Config, rings: Mapping[Subject, EngineRings]) -> dict[Subject, EngineProcess]:
    """How each engine's process is found. None in the role `engine`, which sees its own container only."""
    if config.role == "engine":
        return {}
    found = {}
    for target in config.engines:
        subject = Subject(engine=target.name)
        ring = rings.get(subject)

        def told(pid: int = target.pid, ring: EngineRings | None = ring) -> Pid:
            if pid:
                return Pid(pid, "config")
            return Pid(ring.pid, "ring", ring.file_name) if ring is not None and ring.pid else Pid()

        found[subject] = EngineProcess(target, told, Path(config.machine.proc))
    return found


def host_sources(config: Config, processes: Mapping[Subject, EngineProcess], host: str) -> list[Source]:
    """Every source of the machine; none where `host` is off."""
    if not config.host:
        return []
    world, hertz = world_of(config), config.lanes.host_hz
    return [
        HostSource(host, hertz, world),
        *(EngineHostSource(host, subject, find, hertz, world) for subject, find in processes.items()),
    ]
