"""Where the cgroup of a process lies, versions 1, 2 and both at once, and that it really is the one of that process.

Two ways lead there: through the process's own root (`/proc/PID/root` + its mounts), or through a mount of the host's
`/sys/fs/cgroup`. What stands at `/sys/fs/cgroup` of the agent itself is the agent's, and is never taken. A folder that
says which processes it holds must hold this one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from .kernel_files import NotSeenError, read, reason

WHAT = "the engine's container"
SHARE_PIDS = "let the agent see the engine's processes: shareProcessNamespace: true in the pod, hostPID: true on a node"
SEE_ROOT = (
    "run the agent as the engine's user or give it the capability SYS_PTRACE; "
    "or mount the host's /sys/fs/cgroup and name it in machine.cgroup_root"
)

_MOST_LEVELS = 16
_MOST_FOLDERS = 20_000
_CONTROLLERS = ("cpu", "cpuacct", "memory")
_OCTAL = re.compile(r"\\([0-7]{3})")

Levels = tuple[Path, ...]


class Place(msgspec.Struct, frozen=True):
    """Folders by controller (`cpu`, `cpuacct`, `memory`, `pressure`), the process's own first, then those above it.

    `version` is 1 or 2; with both at once, version 1 has the controllers and version 2 the pressure. `way` says how it
    was found, `held` whether the folder confirmed that the process is in it.
    """

    version: int
    levels: dict[str, Levels]
    way: str
    held: bool

    def of(self, controller: str) -> Levels:
        """Folders of a controller, the process's own first; empty where it is not there."""
        return self.levels.get(controller, ())


class _Mount(msgspec.Struct, frozen=True):
    """A cgroup mount: `shown` is the part of the hierarchy that stands at `folder`."""

    controllers: frozenset[str]  # empty: version 2
    shown: str
    folder: Path


def find_place(pid: int, proc: Path, mounted: Path | None = None) -> Place:
    """The cgroup of process `pid` under `proc`; `mounted`: a mount of the host's hierarchy. Raises NotSeenError."""
    try:
        groups = _groups(read(proc / str(pid) / "cgroup"))
    except OSError as error:
        why = f"/proc/{pid}/cgroup: {reason(error)}"
        raise NotSeenError(WHAT, why, SHARE_PIDS) from None
    tried = []
    for way, mounts in _ways(pid, proc, mounted):
        try:
            return _place(pid, groups, mounts, way)
        except OSError as error:
            tried.append(f"{way}: {reason(error)}")
    raise NotSeenError(WHAT, "; ".join(tried) or "no cgroup mount", SEE_ROOT)


def _ways(pid: int, proc: Path, mounted: Path | None) -> Iterator[tuple[str, list[_Mount]]]:
    root = proc / str(pid) / "root"
    try:
        mounts = list(_mounts(read(proc / str(pid) / "mountinfo"), root))
    except OSError:
        mounts = []
    yield f"/proc/{pid}/root", mounts
    if mounted is not None:
        yield str(mounted), list(_of_host(mounted))


def _place(pid: int, groups: Mapping[str, str], mounts: list[_Mount], way: str) -> Place:
    """Raises OSError where the folders cannot be read or are another process's."""
    levels: dict[str, Levels] = {}
    held = False
    for controller in (*_CONTROLLERS, ""):
        mount = next((m for m in mounts if (controller in m.controllers if controller else not m.controllers)), None)
        path = groups.get(controller)
        if mount is None or path is None:
            continue
        try:
            folders = _levels(mount, path, pid)
            held = _holds(folders[0], pid) or held
        except OSError:
            if controller or not levels:
                raise
            continue  # version 2 beside version 1 brings pressure only
        levels[controller] = folders
    unified = levels.pop("", ())
    if unified and not levels:
        return Place(2, {**dict.fromkeys(_CONTROLLERS, unified), "pressure": unified}, way, held)
    if not levels:
        raise FileNotFoundError("no cgroup mount with the process's controllers")
    return Place(1, {**levels, "pressure": unified}, way, held)


def _levels(mount: _Mount, path: str, pid: int) -> Levels:
    """From the process's own folder up to the mount."""
    inside = _inside(mount.shown, path)
    if inside is None or ".." in inside:
        inside = _search(mount.folder, [part for part in path.split("/") if part not in ("", "..")], pid)
    parts = inside[:_MOST_LEVELS]
    return tuple(mount.folder.joinpath(*parts[:n]) for n in range(len(parts), -1, -1))


def _inside(shown: str, path: str) -> list[str] | None:
    """`path` below what the mount shows; None where it lies elsewhere."""
    above, below = [p for p in shown.split("/") if p], [p for p in path.split("/") if p]
    return below[len(above) :] if below[: len(above)] == above else None


def _search(top: Path, tail: list[str], pid: int) -> list[str]:
    """The folder with the process in it and this end of its path: the agent's own place hides where the path begins."""
    if not tail:
        raise FileNotFoundError("the path leads above what is mounted")
    for count, (folder, _, _) in enumerate(os.walk(top)):
        if count >= _MOST_FOLDERS:
            break
        parts = Path(folder).relative_to(top).parts
        if list(parts[-len(tail) :]) == tail and _pids(Path(folder)) & {pid}:
            return list(parts)
    raise FileNotFoundError("no folder of the mount holds the process")


def _holds(folder: Path, pid: int) -> bool:
    """True where the folder lists the process; False where it cannot tell. Raises FileNotFoundError where it does not."""
    listed = _pids(folder)
    if pid in listed:
        return True
    if listed == {0}:  # processes of another pid namespace are all 0
        return False
    raise FileNotFoundError(f"{folder} does not hold process {pid}")


def _pids(folder: Path) -> set[int]:
    try:
        words = read(folder / "cgroup.procs").split()
    except OSError as error:
        if isinstance(error, (FileNotFoundError, PermissionError, NotADirectoryError)):
            raise
        return {0}  # a threaded group lists no processes
    return {int(word) for word in words if word.isdigit()}


def _groups(text: str) -> dict[str, str]:
    """/proc/PID/cgroup: path by controller; `""` is version 2."""
    found: dict[str, str] = {}
    for line in text.splitlines()[:64]:
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon or not number.isdigit():
            continue
        path = path.removesuffix(" (deleted)")
        for name in controllers.split(",") if controllers else [""]:
            if number == "0" or name:
                found[name] = path
    return found


def _mounts(text: str, root: Path) -> Iterator[_Mount]:
    """The cgroup mounts of /proc/PID/mountinfo, with folders below the process's root."""
    for line in text.splitlines()[:4096]:
        before, dash, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if not dash or len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        options = frozenset(kind[2].split(",")) & frozenset(_CONTROLLERS)
        if kind[0] == "cgroup" and not options:
            continue
        shown, folder = (_OCTAL.sub(lambda m: chr(int(m[1], 8)), fields[i]) for i in (3, 4))
        yield _Mount(options if kind[0] == "cgroup" else frozenset(), shown, root / folder.lstrip("/"))


def _of_host(mounted: Path) -> Iterator[_Mount]:
    """The hierarchies of a mount of the host's /sys/fs/cgroup."""
    if (mounted / "cgroup.controllers").exists():
        yield _Mount(frozenset(), "/", mounted)
        return
    try:
        names = sorted(path.name for path in mounted.iterdir())[:64]
    except OSError:
        return  # said by the caller: no mount has the controllers
    for name in names:
        controllers = frozenset(name.split(",")) & frozenset(_CONTROLLERS)
        if controllers or name == "unified":
            yield _Mount(controllers, "/", mounted / name)
