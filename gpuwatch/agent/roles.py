"""What an agent is on its node: *engine* beside one engine, *node* once for all devices, or *all* of it in one.

Eight sidecars that each poll eight devices would hold the driver's lock sixty-four times a second. So an agent with the
role *engine* opens no driver and looks at no process: it asks over HTTP, reads a ring and a log, and takes device
readings from the node's agent. It needs no privileges. The node's agent has them, and watches no engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec.structs import replace

from ..config import Config, ConfigError, EngineTarget, Gpu, Role, Stacks
from ..sources.gpu.ownership.clues import is_local

NODE_PATH = "/gpu/metrics"
NODE_PORT = 9400
NODE_URL, HOST_IP, POD_NAME = "GPUWATCH_NODE_URL", "HOST_IP", "POD_NAME"
"""Where the node's agent is: its address, or the node's (`status.hostIP`); the pod's name. By the downward API."""


def in_role(config: Config, role: Role | None, environ: Mapping[str, str]) -> Config:
    """The configuration as the role has it; `role` None: as configured. Raises ConfigError."""
    role = role or config.role
    config = replace(config, role=role)
    if role == "node":
        if config.engines:
            raise ConfigError(
                "role: an agent with the role `node` watches no engines; those belong to agents beside them"
            )
        return replace(config, stacks=Stacks(on_incident=False, keep=config.stacks.keep))
    url = node_url(environ, guess=role == "engine")
    if url:
        config = replace(config, engines=tuple(_beside(target, url) for target in config.engines))
    if role == "all":
        return config
    config = replace(config, engines=_named_by_pod(config.engines, environ.get(POD_NAME, "")))
    drivers = Gpu(nvml=False, amd=False, intel=False, kubelet_socket="")
    return replace(config, gpu=drivers, host=False, stacks=Stacks(on_incident=False, keep=config.stacks.keep))


def node_url(environ: Mapping[str, str], *, guess: bool = True) -> str:
    """The page of the node's agent, from the environment; empty where it does not say. Raises ConfigError.

    `guess`: the node's address alone is enough.
    """
    told = environ.get(NODE_URL, "").strip()
    if told:
        parts = urlsplit(told)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{NODE_URL}: not an http(s) URL: {told!r}")
        return told if parts.path.strip("/") else told.rstrip("/") + NODE_PATH
    address = environ.get(HOST_IP, "").strip() if guess else ""
    if not address:
        return ""
    return f"http://{f'[{address}]' if ':' in address else address}:{NODE_PORT}{NODE_PATH}"


def _named_by_pod(engines: tuple[EngineTarget, ...], pod: str) -> tuple[EngineTarget, ...]:
    """Engines of the agent's pod that have no name of their own have the pod's: `localhost:8000` is one in every pod."""
    nameless = {e.name for e in engines if pod and is_local(e) and e.url and e.name == urlsplit(e.url).netloc}
    alone = len(nameless) == 1
    return tuple(
        replace(e, name=pod if alone else f"{pod}:{urlsplit(e.url).port or 80}") if e.name in nameless else e
        for e in engines
    )


def _beside(target: EngineTarget, url: str) -> EngineTarget:
    return target if target.gpu_url else replace(target, gpu_url=url)
