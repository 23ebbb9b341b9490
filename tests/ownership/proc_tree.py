"""A /proc as tests want it: processes with parents, namespaces, cgroups, environments, mapped files and sockets."""

from pathlib import Path

from gpuwatch.sources.gpu.nvml.processes import GpuProcess

CONTAINER = {name: f"{n:064x}" for n, name in enumerate(("vllm", "sglang", "training"), start=0xC0FFEE)}
POD_UID = "3d1f6a52-6d0e-4c0b-9d5e-7e0f4c5b1a90"


def kubepods(container: str, uid: str = POD_UID) -> str:
    """The cgroup of a container of a pod, as the host sees it."""
    name = f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"
    return f"0::/kubepods.slice/{name}/cri-containerd-{CONTAINER[container]}.scope\n"


class ProcTree:
    """Writes below `root`. `hosts`: it shows the host's processes."""

    def __init__(self, root: Path, *, hosts: bool = True):
        self.root = root
        (root / "net").mkdir(parents=True)
        for table in ("tcp", "tcp6"):
            (root / "net" / table).write_text("  sl  local_address rem_address   st ...\n")
        if hosts:
            self.add(2, "kthreadd", parent=0)

    def add(
        self, pid: int, command: str = "python", parent: int = 1, own: int = 0, cgroup: str = "0::/\n",
        environ: dict[str, str] | None = None, maps: str = "", session: int = 0,
    ) -> int:  # fmt: skip
        """One process. `own` is its pid in its own namespace."""
        home = self.root / str(pid)
        (home / "fd").mkdir(parents=True)
        inner = f"\t{own}" if own else ""
        (home / "comm").write_text(command[:15] + "\n")
        (home / "status").write_text(f"Name:\t{command}\nPPid:\t{parent}\nNSpid:\t{pid}{inner}\n")
        (home / "stat").write_text(
            f"{pid} ({command}) S {parent} {pid} {session or pid} 0 -1 {'0 ' * 13}{1000 + pid} 0\n"
        )
        (home / "cgroup").write_text(cgroup)
        (home / "maps").write_text(f"7f00-7f01 rw-s 00000000 00:1a 42   {maps}\n" if maps else "")
        if environ is not None:
            (home / "environ").write_bytes(b"\0".join(f"{k}={v}".encode() for k, v in environ.items()) + b"\0")
        return pid

    def listens(self, pid: int, port: int, inode: int, table: str = "tcp") -> None:
        """The process has a socket that listens."""
        (self.root / str(pid) / "fd" / str(3 + inode % 7)).symlink_to(f"socket:[{inode}]")
        with (self.root / "net" / table).open("a") as lines:
            lines.write(
                f"   0: 0100007F:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 {inode} 1\n"
            )


def on(*pids: int) -> tuple[GpuProcess, ...]:
    """The processes that a driver lists on a device."""
    return tuple(GpuProcess(pid, 1e9) for pid in pids)
