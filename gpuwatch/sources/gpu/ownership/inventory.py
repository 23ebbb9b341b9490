"""The devices that are seen, and by which of their many names each may be called.

A device plugin, an environment variable and a configuration name devices by UUID (abbreviated, too), by the host's index, as
a MIG instance in three forms, by device node or by bus address. A name that fits no device, or more than one, is nobody's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

Facts = Mapping[str, str]

_REPLICA = re.compile(r"(::\d+|/vgpu\d+)$")
_OLD_MIG = re.compile(r"MIG-(GPU-[0-9a-fA-F-]+)/(\d+)/\d+")
_NODE = re.compile(r"nvidia(\d+)(?:/gi(\d+))?")
_SHORTEST = len("GPU-") + 4


class Inventory:
    """Devices by key (`UUID`, `UUID/instance`), with the facts that sources tell of them."""

    def __init__(self, devices: Mapping[str, Facts]) -> None:
        self.devices = {key: devices[key] for key in sorted(devices)}
        self._mig: dict[str, str] = {}
        self._pci: dict[str, str] = {}
        for key, facts in self.devices.items():
            for uuid in filter(None, (part.strip() for part in facts.get("mig_uuid", "").split(","))):
                self._mig[uuid] = key
            if facts.get("pci_bus_id") and not facts.get("board"):
                self._pci[_bus(facts["pci_bus_id"])] = key

    @property
    def boards(self) -> tuple[str, ...]:
        """Whole devices, by the host's index where it is told."""
        whole = (key for key, facts in self.devices.items() if not facts.get("board"))
        return tuple(sorted(whole, key=lambda key: (_number(self.devices[key].get("index", "")), key)))

    def instances(self, board: str) -> tuple[str, ...]:
        """The MIG instances that a board is cut into."""
        return tuple(key for key, facts in self.devices.items() if facts.get("board") == board)

    def key(self, name: str) -> str | None:
        """The device that is called so; None where that is no device, or not one alone."""
        name = _REPLICA.sub("", name.strip())
        if name in self.devices:
            return name
        old = _OLD_MIG.fullmatch(name)
        if old is not None:
            return self._known(f"{old[1]}/{old[2]}")
        if name.startswith("MIG-"):
            return self._mig.get(name)
        if name.isascii() and name.isdigit():
            return self._by("index", name)
        node = _NODE.fullmatch(name)
        if node is not None:
            board = self._by("device", f"nvidia{node[1]}") or self._by("index", node[1])
            return self._known(f"{board}/{node[2]}") if board and node[2] else board
        if name.startswith("GPU-") and len(name) >= _SHORTEST:
            return self._alone([key for key in self.boards if key.lower().startswith(name.lower())])
        return self._pci.get(_bus(name))

    def _by(self, fact: str, value: str) -> str | None:
        return self._alone([key for key in self.boards if self.devices[key].get(fact) == value])

    def _known(self, key: str) -> str | None:
        return key if key in self.devices else None

    @staticmethod
    def _alone(found: list[str]) -> str | None:
        return found[0] if len(found) == 1 else None


def _bus(address: str) -> str:
    """A PCI address without the zeros that some write before its domain."""
    domain, colon, rest = address.strip().lower().partition(":")
    return f"{domain[-4:].rjust(4, '0')}:{rest}" if colon and rest.count(":") == 1 else address.lower()


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 1 << 30
