"""Whose row it is: a device's key, its facts and its holder, from the labels of any generation of exporter.

The key is the UUID where there is one, `UUID/instance` for a MIG instance. Without a UUID it is the host and the index
(`node7:0`), which is stable only as long as no board is moved; AMD's page has a serial number instead of a host.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..ownership.holder import Holder

Labels = Mapping[str, str]

_UUID = ("UUID", "uuid", "gpu_uuid")
_HOST = ("Hostname", "hostname")
_EXPORTERS = ("dcgm-exporter", "device-metrics-exporter", "metrics-exporter")
_FACTS = {
    "device": "device", "modelName": "model", "model_name": "model", "card_model": "model",
    "DCGM_FI_DRIVER_VERSION": "driver", "driver_version": "driver", "Hostname": "node", "hostname": "node",
    "GPU_I_PROFILE": "mig_profile", "pci_bus_id": "pci_bus_id", "mig_uuid": "mig_uuid",
}  # fmt: skip


class Identity(msgspec.Struct, frozen=True):
    """A row's device: `board` is the whole one, `key` the instance where there is one. `weak`: without a UUID."""

    board: str
    key: str
    weak: str = ""


def identity(labels: Labels, host: str) -> Identity | None:
    """The device of a row; None where nothing tells. `host` stands in where the page does not name its own."""
    uuid = next((labels[name] for name in _UUID if labels.get(name)), "")
    index = labels.get("gpu") or labels.get("gpu_id", "")
    if not uuid:
        place = labels.get("serial_number") or next((labels[name] for name in _HOST if labels.get(name)), host)
        if not index or not place:
            return None
        told = "serial number" if labels.get("serial_number") else "host"
        weak = f"{told} and index: the page shows no UUID"
        board = f"{place}:{index}"
    else:
        weak, board = "", uuid
    instance = labels.get("GPU_I_ID") or _partition(labels)
    return Identity(board, f"{board}/{instance}" if instance else board, weak)


def _partition(labels: Labels) -> str:
    """AMD numbers partitions from 0, which is also what a whole device says; board values are on 0."""
    number = labels.get("gpu_partition_id", "")
    return "" if number == "0" else number


def facts(labels: Labels, who: Identity) -> dict[str, str]:
    """What the row says of its device."""
    found = {ours: labels[theirs] for theirs, ours in _FACTS.items() if labels.get(theirs)}
    found["index"] = labels.get("gpu") or labels.get("gpu_id", "")
    if who.weak:
        found["identity"] = who.weak
    if who.key != who.board:
        found["board"] = who.board
    return found


def renamed(every: Mapping[str, str]) -> bool:
    """Whether a row was relabelled on its way through a Prometheus (honor_labels false): `pod` is the exporter's then."""
    return any(key in every for key in ("exported_pod", "exported_namespace", "exported_container"))


def holder(labels: Labels, *, relabelled: bool) -> Holder | None:
    """The workload that a row names; None where it names none, or the exporter itself."""
    if relabelled:
        pod, namespace = labels.get("exported_pod", ""), labels.get("exported_namespace", "")
        container = labels.get("exported_container", "")
    else:
        pod = labels.get("pod") or labels.get("pod_name", "")
        namespace = labels.get("namespace") or labels.get("pod_namespace", "")
        container = labels.get("container") or labels.get("container_name", "")
        if "job" in labels and any(name in pod for name in _EXPORTERS):
            return None  # a target's own labels, on a device that nobody holds
    uid = labels.get("pod_uid", "")
    return Holder(namespace, pod, container, uid) if pod or uid else None
