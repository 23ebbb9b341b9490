"""Which engine a span's resource means: as configured, by name, by address, or the only one that is watched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol
from urllib.parse import urlsplit

from ...model import Subject

_NAMED_BY = ("service.instance.id", "k8s.pod.name", "service.name", "host.name", "container.id")
_RANKS = ("shim.rank", "dp_rank")
_NAME_CHARS = 64


class Target(Protocol):
    """What of a configured engine matters here. `spans` are resource attributes that mean it."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def url(self) -> str: ...  # noqa: D102
    @property
    def spans(self) -> Mapping[str, str]: ...  # noqa: D102


class SpanSubjects:
    """Maps resources to engines. `attributes`: resource attributes that the configuration asks for."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = [(target.name, dict(target.spans), *_address(target.url)) for target in targets]
        hosts = [host for *_, host, _ in self._targets]
        self._hosts = {host: name for name, _, host, _ in self._targets if hosts.count(host) == 1}
        self.attributes = tuple(sorted({key for _, spans, *_ in self._targets for key in spans}))

    def subject_of(self, resource: Mapping[str, str]) -> Subject:
        """The engine that is meant; a lone engine is meant by all. One that nobody configured keeps its own name."""
        named = self._named(resource)
        if not named and len(self._targets) == 1:
            named = self._targets[0][0]
        own = next((resource[key] for key in _NAMED_BY if resource.get(key)), "unknown")
        rank = next((resource[key] for key in _RANKS if resource.get(key)), "0")
        return Subject(engine=(named or own)[:_NAME_CHARS], rank=int(rank) if rank.isdigit() and len(rank) < 5 else 0)

    def is_named(self, resource: Mapping[str, str]) -> bool:
        """Whether the resource says itself that it is an engine that is watched."""
        return bool(self._named(resource))

    def _named(self, resource: Mapping[str, str]) -> str:
        said = [resource.get(key, "") for key in _NAMED_BY]
        for name, spans, _, _ in self._targets:
            if spans and all(resource.get(key) == value for key, value in spans.items()):
                return name
        for name, *_ in self._targets:
            if name in said:
                return name
        address = resource.get("server.address", ""), resource.get("server.port", "")
        for name, _, host, port in self._targets:
            if host and (address == (host, port) or f"{host}:{port}" in said):
                return name
        return next((self._hosts[host] for host in (*said, address[0]) if host and host in self._hosts), "")


def _address(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.hostname or "", str(parts.port or (443 if parts.scheme == "https" else 80))
