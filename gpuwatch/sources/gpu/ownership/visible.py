"""Which devices an engine's environment lets it see: NVIDIA_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES of its process.

Three variables are read and nothing else is kept: an environment holds secrets. The first narrows what a container is
given, by the host's numbering; the second what CUDA shows, numbered within that. What does not decide is None, with why.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from .inventory import Inventory

_NAMES = {b"NVIDIA_VISIBLE_DEVICES": "given", b"CUDA_VISIBLE_DEVICES": "shown", b"CUDA_DEVICE_ORDER": "order"}
_MOST_BYTES = 1024 * 1024
_MOST_TEXT = 4096
_SAYS_NOTHING = ("", "void", "none", "no-dev-files")
_CONTAINER = re.compile(r"[0-9a-f]{64}|/kubepods|/docker|/crio|/\.\./")


class Visible(msgspec.Struct, frozen=True):
    """The three variables; None where one is not set. `contained`: it runs in another container, `in_pod`: a pod's.

    In a pod `all` says nothing: images set it, and a device plugin that hands out device files leaves it as it is.
    """

    given: str | None = None
    shown: str | None = None
    order: str | None = None
    contained: bool = False
    in_pod: bool = False


class Seen(msgspec.Struct, frozen=True):
    """Devices that the environment names, or why it names none."""

    gpus: tuple[str, ...] = ()
    why: str = ""


def read(pid: int, proc: Path = Path("/proc")) -> Visible | None:
    """The variables of a process as it was started; None where they may not be read."""
    try:
        with (proc / str(pid) / "environ").open("rb") as file:
            raw = file.read(_MOST_BYTES)
    except OSError:
        return None
    found: dict[str, str] = {}
    for entry in raw.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name in _NAMES:
            found[_NAMES[name]] = value[:_MOST_TEXT].decode("utf-8", "replace")
    try:
        groups = (proc / str(pid) / "cgroup").read_text(errors="replace")[:4096]
    except OSError:
        groups = ""
    return Visible(**found, contained=_CONTAINER.search(groups) is not None, in_pod="kubepods" in groups)


def devices(visible: Visible, inventory: Inventory) -> Seen:
    """The devices of the inventory that the engine sees."""
    base, why = _given(visible, inventory)
    if visible.shown is None:
        if base is None:
            return Seen(why=why)
        chosen = (visible.given or "all") != "all" or len(base) == 1
        return Seen(base) if chosen else Seen(why=f"its environment shows it all of {len(base)} devices")
    return _shown(visible.shown, visible.order, base, why, inventory)


def _given(visible: Visible, inventory: Inventory) -> tuple[tuple[str, ...] | None, str]:
    """What the container was given, in the order in which CUDA numbers it; None where that is not told."""
    given = visible.given.strip() if visible.given is not None else ""
    if given == "all" and not (visible.in_pod and len(inventory.boards) > 1):
        return inventory.boards, ""
    if given in (*_SAYS_NOTHING, "all"):
        if visible.contained or visible.given is not None:
            return None, "its container's devices are not in its environment"
        return inventory.boards, ""  # no container: CUDA numbers the host's devices
    names = [name for name in given.split(",") if name.strip()]
    found = [inventory.key(name) for name in names]
    if None in found:
        unknown = names[found.index(None)]
        return None, f"NVIDIA_VISIBLE_DEVICES names {unknown[:60]}, which is no device that is seen here"
    order = {key: n for n, key in enumerate(inventory.boards)}
    keys = dict.fromkeys(key for key in found if key is not None)
    return tuple(sorted(keys, key=lambda key: (order.get(key.partition("/")[0], 1 << 30), key))), ""


def _shown(
    shown: str, order: str | None, base: tuple[str, ...] | None, why: str, inventory: Inventory
) -> Seen:  # fmt: skip
    """CUDA's own choice: names, or numbers within what was given; the first that is none ends the list."""
    found: dict[str, None] = {}
    for name in (part.strip() for part in shown.split(",")):
        if name.lstrip("-").isdigit():
            if base is None:
                return Seen(
                    why=f"CUDA_VISIBLE_DEVICES={shown[:60]} counts within a container whose devices are not known"
                )
            if not _numbered(base, order, inventory):
                return Seen(
                    why="CUDA numbers devices of different models by their speed (CUDA_DEVICE_ORDER is not PCI_BUS_ID)"
                )
            key = base[int(name)] if 0 <= int(name) < len(base) else None
        else:
            key = inventory.key(name)
        if key is None:
            break
        found[key] = None
    return (
        Seen(tuple(found))
        if found
        else Seen(why=why or f"CUDA_VISIBLE_DEVICES={shown[:60]} shows no device that is seen here")
    )


def _numbered(base: tuple[str, ...], order: str | None, inventory: Inventory) -> bool:
    """Whether CUDA's numbers follow the bus: it sorts by speed unless told, which is the same among equals."""
    models = {inventory.devices[key].get("model", "") for key in base if key in inventory.devices}
    return order == "PCI_BUS_ID" or len(models) <= 1
