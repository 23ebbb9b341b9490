"""The configuration: what `gpuwatch.toml` may say, with a default for everything, so that `Config()` works.

Strict before start: an unknown key, a wrong type or an impossible value is a `ConfigError` that names the file and the
key (or the line, where it is not TOML at all). Times are seconds, rates hertz, sizes bytes, ratios 0–1.
Every key is explained in docs/config.md.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol
from urllib.parse import urlsplit

import msgspec

Seconds = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Hertz = Annotated[float, msgspec.Meta(gt=0, le=10)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Role = Literal["all", "engine", "node"]


class ConfigError(Exception):
    """A configuration that cannot be used; the message names the file and the key or the line. Exit code 2."""


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings are frozen and refuse keys that they do not know."""


class Slo(_Strict, frozen=True):
    """What users were promised, in seconds: time to first token and time per output token."""

    ttft_p50_s: Positive = 0.3
    ttft_p95_s: Positive = 1.0
    tpot_p95_s: Positive = 0.08


class EngineTarget(_Strict, frozen=True):
    """One engine to watch.

    `name` is its stable subject key (default: host:port of the URL). `dialect` is a name from gpuwatch/dialects or
    "auto". `gpus` are UUIDs that it runs on (default: found out). `gpu_url` is a dcgm-exporter page. `pod` is
    "namespace/name" or "namespace/name/container", where the engine runs in another pod than the agent. `ring` is
    a step ring file (default: in `ring_dir`, `<name>-<rank>.ring`, or the ring that says this URL's port). `model` chooses
    the SLO where the engine does not say its model. `pid` lets the host source watch its processes. `log` is the file that
    its log goes to, `-` standard input; one of `url` and `log` is needed.
    `spans` are resource attributes that mean this engine, all of them: `{"k8s.pod.name" = "vllm-0"}`.
    """

    url: str = ""
    name: str = ""
    dialect: str = "auto"
    gpus: tuple[str, ...] = ()
    gpu_url: str = ""
    pod: str = ""
    ring: str = ""
    model: str = ""
    pid: int = 0
    log: str = ""
    spans: dict[str, str] = {}


class Maintenance(_Strict, frozen=True):
    """An announced window (unix seconds, or a TOML date-time with an offset): incidents in it are info at most."""

    from_at: float
    until_at: float
    engine: str = ""
    reason: str = ""


class Alertmanager(_Strict, frozen=True):
    """Alertmanager's API v2, opt-in. Open incidents are posted every `repost_s`; their `endsAt` lies 3 × that ahead."""

    url: str
    repost_s: Positive = 60.0
    timeout_s: Positive = 5.0


class Webhook(_Strict, frozen=True):
    """A receiver of transitions as JSON. `bearer_file` names a file with the token to send, read at each delivery."""

    url: str
    bearer_file: str = ""
    timeout_s: Positive = 5.0


class Jsonl(_Strict, frozen=True):
    """A file to which each transition is appended as one line; rotated to `.1` … `.keep` at `max_bytes`."""

    path: str
    max_bytes: Count = 16 * 1024 * 1024
    keep: Count = 3


class Stacks(_Strict, frozen=True):
    """Python stacks of an engine through py-spy, when an incident opens that a stack can explain; `keep` files."""

    on_incident: bool = True
    keep: Count = 50


class Lanes(_Strict, frozen=True):
    """How often each kind of source is asked, and how long it may take."""

    fast_hz: Hertz = 5.0
    fast_hz_with_ring: Hertz = 1.0
    slow_hz: Hertz = 0.5
    steps_hz: Hertz = 5.0
    gpu_hz: Hertz = 1.0
    host_hz: Hertz = 1.0
    changes_hz: Hertz = 0.2
    whole_page_every_s: Positive = 60.0
    timeout_s: Positive = 2.0


class Gpu(_Strict, frozen=True):
    """Devices through their drivers' libraries. "auto": on where the library can be loaded.

    `usage_hz` is how often utilisation and memory are asked, `lanes.gpu_hz` clocks, power, throttling and activity.
    `kubelet_socket` tells which pod was given which device; empty: not asked.
    """

    nvml: bool | Literal["auto"] = "auto"
    amd: bool | Literal["auto"] = "auto"
    intel: bool | Literal["auto"] = "auto"
    usage_hz: Annotated[float, msgspec.Meta(ge=0.5, le=5)] = 1.0
    slow_every_s: Annotated[float, msgspec.Meta(ge=1)] = 10.0
    processes_every_s: Annotated[float, msgspec.Meta(ge=10)] = 10.0
    kubelet_socket: str = "/var/lib/kubelet/pod-resources/kubelet.sock"


class Machine(_Strict, frozen=True):
    """Where this machine's files are, where they are mounted into the agent's container, and what else is asked.

    `cgroup_root` is a mount of the host's /sys/fs/cgroup. `paths` are folders whose disks matter (model, caches); none:
    all disks. `podinfo` is a volume of the downward API. `ask_engines`: their version and model, over HTTP, after a restart.
    """

    proc: str = "/proc"
    sys: str = "/sys"
    cgroup_root: str = ""
    paths: tuple[str, ...] = ()
    podinfo: str = "/etc/podinfo"
    ask_engines: bool = True


class Bounds(_Strict, frozen=True):
    """What is cut, and where. Each cut is counted in `gpuwatch_agent_dropped_total{what}`."""

    page_bytes: Count = 8 * 1024 * 1024
    otlp_body_bytes: Count = 4 * 1024 * 1024
    api_body_bytes: Count = 64 * 1024
    spans_waiting: Count = 20_000
    journal_hours: Positive = 6.0
    journal_bytes: Count = 512 * 1024 * 1024
    capsules: Count = 50
    incidents_kept: Count = 10_000
    sink_queue: Count = 1000
    label_chars: Count = 120
    metric_series: Count = 150
    metric_series_per_gpu: Count = 15


class Config(_Strict, frozen=True):
    """Everything the agent may be told."""

    role: Role = "all"
    engines: tuple[EngineTarget, ...] = ()
    slo: Slo = Slo()
    slo_by_model: dict[str, Slo] = {}
    scope: dict[str, str] = {}
    rules: dict[str, dict[str, Any]] = {}
    muted: tuple[str, ...] = ()
    maintenance: tuple[Maintenance, ...] = ()
    warm_up_s: Seconds = 30.0
    listen: str = "127.0.0.1:9400"
    otlp_listen: str = "127.0.0.1:4318"
    otlp_grpc_listen: str = "auto"
    api_token_file: str = ""
    forward_traces_url: str = ""
    state_dir: str = ""
    ring_dir: str = ""
    host: bool = True
    alertmanager: Alertmanager | None = None
    webhook: Webhook | None = None
    jsonl: Jsonl | None = None
    stacks: Stacks = Stacks()
    lanes: Lanes = Lanes()
    gpu: Gpu = Gpu()
    machine: Machine = Machine()
    bounds: Bounds = Bounds()

    def slo_for(self, model: str) -> Slo:
        """The SLO of a model: its own where `[slo_by_model]` names it, `[slo]` otherwise."""
        return self.slo_by_model.get(model, self.slo)

    @property
    def ring_path(self) -> Path:
        """Where step rings lie: `ring_dir`, or where the writers put them (docs/ring.md)."""
        return Path(self.ring_dir or os.environ.get("GPUWATCH_RING_DIR", "") or "/dev/shm/gpuwatch")  # noqa: S108

    @property
    def state_path(self) -> Path:
        """Where journal, incidents and capsules live: `state_dir`, or the system's or the user's state folder."""
        if self.state_dir:
            return Path(self.state_dir).expanduser()
        if os.geteuid() == 0:
            return Path("/var/lib/gpuwatch")
        return Path(os.environ.get("XDG_STATE_HOME", "") or Path.home() / ".local" / "state") / "gpuwatch"


SCOPE_KEYS = ("cluster", "namespace", "pool", "team")


def load(path: str | Path | None) -> Config:
    """Read and check a configuration file; None gives the defaults. Raises ConfigError naming file and key or line."""
    if path is None:
        return Config()
    origin = str(path)
    try:
        raw = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{origin}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{origin}: not UTF-8 at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin}: {error}") from error
    return parse(raw, origin)


def parse(raw: Mapping[str, Any], origin: str = "config") -> Config:
    """Turn decoded TOML into a checked Config. Raises ConfigError naming `origin` and the key."""
    try:
        config = msgspec.convert(_unix_seconds(raw, ""), Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{origin}: {_explain(str(error))}") from error
    except _NoOffsetError as error:
        raise ConfigError(f"{origin}: {error}") from error
    named = tuple(
        msgspec.structs.replace(engine, name=engine.name or urlsplit(engine.url).netloc or _log_name(engine.log))
        for engine in config.engines
    )
    config = msgspec.structs.replace(config, engines=named)
    for key, problem in _problems(config):
        raise ConfigError(f"{origin}: {key}: {problem}")
    return config


def with_engines(config: Config, urls: Sequence[str], origin: str = "--engine") -> Config:
    """The configuration with more engines, by URL. Raises ConfigError naming `origin`."""
    if not urls:
        return config
    more = parse({"engines": [{"url": url} for url in urls]}, origin).engines
    known = {engine.name for engine in config.engines}
    return msgspec.structs.replace(config, engines=(*config.engines, *(e for e in more if e.name not in known)))


class HasParams(Protocol):
    """What of a rule matters here."""

    @property
    def params(self) -> type[msgspec.Struct]: ...  # noqa: D102


def check_rules(config: Config, rules: Mapping[str, HasParams], origin: str = "config") -> None:
    """Check `[rules.*]` and `muted` against the rules that exist. Raises ConfigError naming `origin` and the key."""
    for stem in config.muted:
        if stem not in rules:
            raise ConfigError(f"{origin}: muted: no rule `{stem}`{_nearest(stem, rules)}")
    for stem, params in config.rules.items():
        if stem not in rules:
            raise ConfigError(f"{origin}: rules.{stem}: no such rule{_nearest(stem, rules)}")
        known = rules[stem].params.__struct_fields__
        for key in params:
            if key not in known:
                raise ConfigError(f"{origin}: rules.{stem}.{key}: unknown key{_nearest(key, known)}")
        try:
            msgspec.convert(params, rules[stem].params)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{origin}: {_explain(str(error), f'rules.{stem}')}") from error


def host_port(listen: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port`. Raises ValueError."""
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"not host:port: {listen!r}")
    return host.strip("[]"), int(port)


def _problems(config: Config) -> list[tuple[str, str]]:
    """What types cannot say: addresses, uniqueness, order of times."""
    problems: list[tuple[str, str]] = []
    seen: set[str] = set()
    for i, engine in enumerate(config.engines):
        if engine.url:
            problems += _url_problem(f"engines[{i}].url", engine.url)
        elif not engine.log:
            problems.append((f"engines[{i}].url", "this key is required where there is no `log`"))
        if engine.gpu_url:
            problems += _url_problem(f"engines[{i}].gpu_url", engine.gpu_url)
        if engine.pod and (engine.pod.count("/") not in (1, 2) or not all(engine.pod.split("/"))):
            problems.append((f"engines[{i}].pod", f"not namespace/name or namespace/name/container: {engine.pod!r}"))
        if engine.dialect != "auto":
            problems += _dialect_problem(f"engines[{i}].dialect", engine.dialect)
        if engine.name in seen:
            problems.append((f"engines[{i}].name", f"`{engine.name}` is used twice"))
        seen.add(engine.name)
    for i, window in enumerate(config.maintenance):
        if window.until_at <= window.from_at:
            problems.append((f"maintenance[{i}].until_at", "must be later than from_at"))
        if window.engine and window.engine not in seen:
            problems.append((f"maintenance[{i}].engine", f"no engine `{window.engine}`{_nearest(window.engine, seen)}"))
    for key in config.scope:
        if key not in SCOPE_KEYS:
            problems.append((f"scope.{key}", f"unknown key{_nearest(key, SCOPE_KEYS)}"))
    for key, sink in (("alertmanager.url", config.alertmanager), ("webhook.url", config.webhook)):
        if sink is not None:
            problems += _url_problem(key, sink.url)
    if config.forward_traces_url:
        problems += _url_problem("forward_traces_url", config.forward_traces_url, ("http", "https", "grpc", "grpcs"))
    addresses = [("listen", config.listen), ("otlp_listen", config.otlp_listen)]
    if config.otlp_grpc_listen not in ("", "auto"):
        addresses.append(("otlp_grpc_listen", config.otlp_grpc_listen))
    for key, listen in addresses:
        try:
            host_port(listen)
        except ValueError as error:
            problems.append((key, str(error)))
    return problems


def _log_name(log: str) -> str:
    """What an engine is called that is known by its log only."""
    return "stdin" if log == "-" else Path(log).stem


def _dialect_problem(key: str, name: str) -> list[tuple[str, str]]:
    from .dialects import all_dialects

    known = all_dialects()
    return [] if name in known else [(key, f"no dialect `{name}`; there are {', '.join(known)}, or auto")]


def _url_problem(key: str, url: str, schemes: tuple[str, ...] = ("http", "https")) -> list[tuple[str, str]]:
    try:
        parts = urlsplit(url)
        good = parts.scheme in schemes and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    kind = "http(s)" if len(schemes) == 2 else "http(s) or grpc(s)"
    return [] if good else [(key, f"not an {kind} URL: {url!r}")]


class _NoOffsetError(ValueError):
    """A local date-time: another second on each machine."""


def _unix_seconds(value: Any, path: str) -> Any:
    """TOML date-times as unix seconds; they need an offset."""
    if isinstance(value, Mapping):
        return {key: _unix_seconds(item, f"{path}.{key}".lstrip(".")) for key, item in value.items()}
    if isinstance(value, list):
        return [_unix_seconds(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise _NoOffsetError(f"{path}: a date-time needs an offset, such as {value.isoformat()}Z")
        return value.timestamp()
    return value


def _explain(message: str, prefix: str = "") -> str:
    """msgspec's "… - at `$.a[0].b`" as "a[0].b: …"."""
    text, _, where = message.partition(" - at `")
    path = where.rstrip("`").removeprefix("$").lstrip(".")
    path = f"{prefix}.{path}".strip(".") if prefix else path
    unknown = re.search(r"unknown field `([^`]*)`", text)
    missing = re.search(r"missing required field `([^`]*)`", text)
    if unknown:
        return f"{path}.{unknown[1]}: unknown key".lstrip(".")
    if missing:
        return f"{path}.{missing[1]}: this key is required".lstrip(".")
    return f"{path or 'top level'}: {text[0].lower()}{text[1:]}"


def _nearest(word: str, known: Any) -> str:
    """`; did you mean x?` where a known name is close."""
    import difflib

    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean `{close[0]}`?" if close else ""
