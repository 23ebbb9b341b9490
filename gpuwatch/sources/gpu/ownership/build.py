"""Builds the ownership source from what the agent has: its device sources, its rings, its configuration and role."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ....config import Config
from ...poll import Clock, Source
from ...ring.rings import EngineRings
from ..dcgm import DcgmSource
from ..nvml.processes import GpuProcess
from .clues import Pid, own_pod
from .holder import Holder
from .kubelet import Kubelet
from .source import OwnershipSource, World


def ownership_source(
    config: Config, sources: Sequence[Source], rings: Iterable[EngineRings], clock: Clock, host: str,
    environ: Mapping[str, str],
) -> OwnershipSource | None:  # fmt: skip
    """The source, or None where no device will ever be seen."""
    books: list[Any] = [source for source in sources if hasattr(source, "devices")]
    if not books:
        return None
    listing = [source for source in books if hasattr(source, "owners")]
    pages = [source for source in books if isinstance(source, DcgmSource)]
    followed = tuple(rings)

    def lists() -> dict[str, tuple[GpuProcess, ...]]:
        return {key: held for source in listing for key, held in source.owners().items()}

    def holders() -> dict[str, tuple[Holder, ...]]:
        return {key: held for page in pages for key, held in page.holders().items()}

    def pids() -> dict[str, Pid]:
        told = {ring.subject.engine: Pid(ring.pid, "ring", ring.file_name) for ring in followed if ring.pid}
        return told | {target.name: Pid(target.pid, "config") for target in config.engines if target.pid}

    socket = config.gpu.kubelet_socket
    world = World(
        books, lists, holders, pids, config.role != "engine", own_pod(environ),
        Path(config.machine.proc),
        kubelet=Kubelet(Path(socket), config.lanes.timeout_s) if socket and config.role != "engine" else None,
    )  # fmt: skip
    return OwnershipSource(config.engines, world, clock, host)
