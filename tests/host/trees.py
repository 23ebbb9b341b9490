"""Files as the kernel writes them: processes under `proc`, cgroups of version 1, 2 and both at once."""

from pathlib import Path

STAT = (
    "{pid} ({name}) S {parent} {pid} {session} 0 -1 4194560 100 0 {faults} 0 {user} {system} 0 0 20 0 {threads} 0 {start} "
    "1000000 {pages} 18446744073709551615"
)
PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total={some}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total={full}\n"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def process(proc: Path, pid: int, **told) -> Path:
    """A process with one thread of its own; times are in ticks."""
    defaults = {"name": "python", "parent": 1, "session": 7, "faults": 0, "user": 0, "system": 0, "threads": 1}
    values = defaults | {"start": 5000, "pages": 1000} | told
    line = STAT.format(pid=pid, **values) + "\n"
    folder = proc / str(pid)
    write(folder / "stat", line)
    write(folder / "task" / str(pid) / "stat", line)
    write(folder / "status", "Name:\tpython\nCpus_allowed_list:\t0-171\nvoluntary_ctxt_switches:\t0\n")
    return folder


class Tree:
    """One engine process (pid 42) in a container, seen from beside it: `proc/42/root` is its root."""

    pid = 42

    def __init__(self, top: Path) -> None:
        self.proc = top / "proc"
        self.folder = process(self.proc, self.pid)
        self.root = self.folder / "root"

    def mounts(self, *lines: str) -> None:
        write(self.folder / "mountinfo", "".join(f"{30 + n} 29 0:26 {line}\n" for n, line in enumerate(lines)))

    def groups(self, *lines: str) -> None:
        write(self.folder / "cgroup", "".join(line + "\n" for line in lines))

    def put(self, path: str, **files: str | int) -> Path:
        """Files of a cgroup below the process's root; `cpu_max` is `cpu.max`."""
        folder = self.root / path.lstrip("/")
        for name, text in files.items():
            write(folder / name.replace("_", ".", 1), f"{text}\n")
        return folder


def version_2(top: Path, path: str = "/", shown: str = "/") -> tuple[Tree, Path]:
    """The usual container: version 2, its own cgroup namespace."""
    tree = Tree(top)
    tree.mounts(f"{shown} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw")
    tree.groups(f"0::{path}")
    inside = path[len(shown) :] if shown != "/" else path
    folder = tree.put(f"sys/fs/cgroup/{inside}", cgroup_procs=tree.pid)
    return tree, folder


def version_1(top: Path, path: str = "/kubepods/burstable/pod1/abc") -> tuple[Tree, Path, Path]:
    """Version 1: the container's part of each hierarchy is mounted, as container runtimes do."""
    tree = Tree(top)
    tree.mounts(
        f"{path} /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct",
        f"{path} /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory",
        f"{path} /sys/fs/cgroup/systemd ro - cgroup systemd rw,xattr,name=systemd",
    )
    tree.groups(f"11:memory:{path}", f"4:cpu,cpuacct:{path}", f"1:name=systemd:{path}")
    cpu = tree.put("sys/fs/cgroup/cpu,cpuacct", cgroup_procs=tree.pid)
    memory = tree.put("sys/fs/cgroup/memory", cgroup_procs=tree.pid)
    return tree, cpu, memory
