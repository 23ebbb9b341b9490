"""Finds the replicas of a pool in a Prometheus, and the devices, containers and nodes that are each one's own.

A replica is a target that shows engine series. A device is its own where dcgm-exporter names its pod, or where both run
on one host and no other replica does; a device that cannot be told is nobody's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from ...sources.gpu.dcgm.fields import NAMES as GPU_NAMES
from .client import PrometheusClient

KEY_LABELS = ("cluster", "namespace", "job", "instance", "pod")
MAX_REPLICAS = 200
_GPU_PROBE = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_TEMP")


class Replica(msgspec.Struct):
    """One engine. `target` are the labels that select it; `gpus` UUIDs; `node_job` selects its node's exporter."""

    name: str
    target: dict[str, str]
    pod: str = ""
    host: str = ""
    gpus: tuple[str, ...] = ()
    node: dict[str, str] = {}

    @property
    def selector(self) -> str:
        """Matchers for its own series."""
        return matchers(self.target)


def matchers(labels: Mapping[str, str]) -> str:
    """`a="x",b="y"`, escaped."""
    return ",".join(f'{k}="{_quoted(v)}"' for k, v in labels.items())


def sentinel_selector(names: Iterable[str], match: str = "") -> str:
    """A selector for any of these names, with the user's matchers."""
    extra = f",{match}" if match else ""
    return f'{{__name__=~"{"|".join(sorted(names))}"{extra}}}'


def find_replicas(
    client: PrometheusClient, sentinels: frozenset[str], match: str, since: float, until: float
) -> list[Replica]:
    """Every target that shows an engine, one for each pod or instance, in the order of their names."""
    by_target: dict[tuple[tuple[str, str], ...], int] = {}
    hosts: dict[tuple[tuple[str, str], ...], str] = {}
    for labels in client.series([sentinel_selector(sentinels, match)], since, until):
        key = tuple((name, labels[name]) for name in KEY_LABELS if labels.get(name))
        by_target[key] = by_target.get(key, 0) + 1
        hosts[key] = labels.get("node") or _host(labels.get("instance", ""))
    best: dict[tuple[str, ...], tuple[tuple[str, str], ...]] = {}
    for key in sorted(by_target, key=lambda k: (-by_target[k], k)):
        best.setdefault(_who(dict(key)), key)  # the same pod scraped by two jobs is one replica
    found = [Replica("", dict(key), dict(key).get("pod", ""), hosts[key]) for key in best.values()]
    _name(found)
    return sorted(found, key=lambda r: r.name)


def find_devices(client: PrometheusClient, replicas: list[Replica], since: float, until: float) -> int:
    """Give each replica its devices and its node's exporter. Returns how many devices are nobody's."""
    by_pod = {r.pod: r for r in replicas if r.pod}
    by_host: dict[str, list[Replica]] = {}
    for replica in replicas:
        by_host.setdefault(replica.host, []).append(replica)
    owner: dict[str, Replica | None] = {}
    for labels in client.series([sentinel_selector(_GPU_PROBE)], since, until):
        uuid = labels.get("UUID") or labels.get("uuid") or labels.get("gpu_uuid", "")
        if not uuid:
            continue
        pod = labels.get("exported_pod") or labels.get("pod", "")
        found = by_pod.get(pod)
        if found is None and not labels.get("exported_pod"):
            places = (labels.get("node"), labels.get("Hostname"), _host(labels.get("instance", "")))
            there = next((by_host[p] for p in places if p and p in by_host), [])
            found = there[0] if len(there) == 1 else None
        owner[uuid] = owner.get(uuid) or found
    for uuid, mine in sorted(owner.items(), key=lambda o: o[0]):
        if mine is not None:
            mine.gpus = (*mine.gpus, uuid)
    _find_nodes(client, by_host, since, until)
    return sum(1 for mine in owner.values() if mine is None)


def gpu_selector(replica: Replica) -> str:
    """A selector for the series of its devices."""
    uuids = _alternatives(replica.gpus)
    return f'{{__name__=~"{"|".join(sorted(GPU_NAMES))}",UUID=~"{uuids}"}}'


def _find_nodes(client: PrometheusClient, by_host: dict[str, list[Replica]], since: float, until: float) -> None:
    for labels in client.series(["node_load1"], since, until):
        for place in (labels.get("node"), labels.get("nodename"), _host(labels.get("instance", ""))):
            for replica in by_host.get(place or "-", ()):
                replica.node = {k: labels[k] for k in ("job", "instance") if labels.get(k)}


def _who(target: Mapping[str, str]) -> tuple[str, ...]:
    """What makes two targets one replica: the pod, or the address."""
    place = (target.get("cluster", ""), target.get("namespace", ""))
    return (
        (*place, "pod", target["pod"])
        if target.get("pod")
        else (*place, "at", target.get("instance", ""), target.get("job", ""))
    )


def _name(replicas: list[Replica]) -> None:
    """The pod, else the address; with what tells them apart where two have the same."""
    short = [r.pod or r.target.get("instance") or r.target.get("job") or "engine" for r in replicas]
    for replica, name in zip(replicas, short, strict=True):
        place = "/".join(replica.target[k] for k in ("cluster", "namespace", "job") if k in replica.target)
        replica.name = f"{place}/{name}" if short.count(name) > 1 and place else name


def _host(instance: str) -> str:
    host = instance.rpartition(":")[0] if re.search(r":\d+$", instance) else instance
    return host.strip("[]")


def _alternatives(words: Iterable[str]) -> str:
    return "|".join(_quoted(re.escape(word).replace("\\-", "-").replace("\\ ", " ")) for word in words)


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
