"""Every kind of fault: its keys with their bounds, what is made of them, and where it can be played.

docs/faults.md has a row for each (a test compares). `Key.low` is inclusive, or exclusive with `above`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .clients import LostAbort, LumpyProxy, StalledClient
from .deferred import AdapterLoad, GrammarCompile
from .device import EVERY_GPU, ClockLimit, LowIdleClock, StepCreep
from .exporter import ExporterFrozen
from .front_end import BlockedEventLoop, SlowTokenizer
from .host import CpuQuota, HostMemoryLeak, IdleSpin
from .interval import FOREVER
from .memory import BlockLeak, OffloadStall
from .outage import Outage
from .oversized import OversizedRequest
from .slowdown import HUNG_COLLECTIVE, SLOW_TRANSFER, Slowdown
from .tenants import Neighbor


@dataclass(frozen=True)
class Key:
    """A number of a fault's table; required where it has no `default`."""

    name: str
    default: float | None = None
    low: float = 0.0
    high: float = math.inf
    above: bool = False
    whole: bool = False


Build = Callable[[str, float, float, dict[str, Any]], Any]  # kind, at, until, the other keys


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    `lasts`: whether it has until_s ("may", "needed", "never"). `live`: whether it is also played in real time, behind the
    server: on "both" runners, on the "model" one, or not at all ("").
    """

    keys: tuple[Key, ...]
    build: Build
    lasts: str = "may"
    live: str = ""


def _window(cls: Callable[..., Any]) -> Build:
    return lambda kind, at, until, keys: cls(at, until, kind, **keys)


def _brake(kind: str, at: float, until: float, keys: dict[str, Any]) -> ClockLimit:
    return ClockLimit(at, until, kind, keys["ratio"], throttled=True)


def _clock(kind: str, at: float, until: float, keys: dict[str, Any]) -> ClockLimit:
    return ClockLimit(at, until, kind, keys["ratio"], bool(keys["throttled"]), keys["gpu"])


_FACTOR = Key("factor", above=True)
_RATIO = Key("ratio", above=True, high=1.0)
_DOWN = Key("down_s", FOREVER)
_MOST = 1e9

KINDS: dict[str, Kind] = {
    # How fast steps go.
    "hung_step": Kind((), lambda kind, at, until, _: Slowdown(at, until, 0.0, kind), "needed", "both"),
    HUNG_COLLECTIVE: Kind(
        (Key("gpu", 0, whole=True, high=1023),),
        lambda kind, at, until, keys: Slowdown(at, until, 0.0, kind, keys["gpu"]),
    ),
    "slow_step": Kind(
        (_FACTOR,), lambda kind, at, until, keys: Slowdown(at, until, 1.0 / keys["factor"], kind), "needed", "both"
    ),
    SLOW_TRANSFER: Kind(
        (_FACTOR,), lambda kind, at, until, keys: Slowdown(at, until, 1.0 / keys["factor"], kind), "needed"
    ),
    "clock_limit": Kind(
        (_RATIO, Key("throttled", 1, high=1, whole=True), Key("gpu", EVERY_GPU, low=EVERY_GPU, whole=True)),
        _clock, live="model",
    ),
    "power_brake": Kind((Key("ratio", 0.5, above=True, high=1.0),), _brake, live="model"),
    "low_idle_clock": Kind((_RATIO,), _window(LowIdleClock), live="model"),
    "step_creep": Kind((Key("percent_per_min", above=True, high=1e5),), _window(StepCreep), live="model"),
    "neighbor": Kind(
        (
            Key("dram_share", 0.0, high=0.95), Key("sm_share", 0.0, high=0.95), Key("on_s", FOREVER, above=True),
            Key("off_s", 0.0), Key("isolated", 0, high=1, whole=True),
        ),
        lambda kind, at, until, keys: Neighbor(at, until, kind, **(keys | {"isolated": bool(keys["isolated"])})),
        live="model",
    ),
    # Host and front end.
    "cpu_quota": Kind(
        (Key("quota_ratio", above=True, high=1.0), Key("period_s", 0.1, above=True, high=10.0)),
        _window(CpuQuota), live="both",
    ),
    "host_memory_leak": Kind(
        (
            Key("bytes_per_request", above=True), Key("limit_bytes", FOREVER, above=True), _DOWN,
        ),
        _window(HostMemoryLeak),
    ),
    "idle_spin": Kind((Key("cores", 1.0, above=True, high=1024),), _window(IdleSpin)),
    "slow_tokenizer": Kind(
        (Key("seconds_per_1k_tokens", above=True, high=1e4),), _window(SlowTokenizer), live="both"
    ),
    "blocked_event_loop": Kind(
        (Key("block_s", above=True, high=3600), Key("every_s", above=True, high=_MOST)),
        _window(BlockedEventLoop), live="both",
    ),
    # Clients, and what lies between.
    "stalled_client": Kind(
        (Key("share", 0.3, above=True, high=1.0), Key("buffer_tokens", 32, low=1, whole=True)),
        _window(StalledClient), live="both",
    ),
    "lumpy_proxy": Kind((Key("every_s", above=True, high=3600),), _window(LumpyProxy), live="both"),
    "lost_abort": Kind((), _window(LostAbort), live="both"),
    "oversized_request": Kind(
        (Key("pool_ratio", 1.2, above=True, high=1000),),
        lambda _kind, at, _until, keys: OversizedRequest(at, keys["pool_ratio"]), "never", "model",
    ),
    # Memory, and what a request waits for besides it.
    "block_leak": Kind((Key("blocks_per_min", above=True, high=_MOST),), _window(BlockLeak), live="both"),
    "offload_stall": Kind((Key("bytes_per_s", above=True),), _window(OffloadStall), live="model"),
    "adapter_load": Kind(
        (
            Key("adapters", low=1, whole=True, high=1e6), Key("slots", low=1, whole=True, high=1e6),
            Key("load_s", above=True, high=3600),
        ),
        _window(AdapterLoad), live="both",
    ),
    "grammar_compile": Kind(
        (
            Key("compile_s", above=True, high=3600), Key("share", 1.0, above=True, high=1.0),
            Key("threads", 1, low=1, high=1024, whole=True),
        ),
        _window(GrammarCompile), live="both",
    ),
    # The process, and the looking.
    "restart": Kind((Key("down_s"),), lambda kind, at, _until, keys: Outage(at, keys["down_s"], kind), "never", "both"),
    "crash": Kind(
        (_DOWN, Key("xid", 0, high=1e6, whole=True)),
        lambda kind, at, _until, keys: Outage(at, keys["down_s"], kind, keys["xid"]), "never", "both",
    ),
    "failed_start": Kind(
        (Key("try_s", 20.0, above=True, high=86_400), Key("attempts", FOREVER, low=1, whole=True)),
        lambda kind, at, _until, keys: Outage(
            at, (keys["attempts"] + 1) * keys["try_s"], kind, try_s=keys["try_s"]
        ),
        "never",
    ),
    "exporter_frozen": Kind((), _window(ExporterFrozen), live="both"),
}  # fmt: skip
