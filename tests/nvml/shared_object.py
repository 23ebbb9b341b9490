"""Builds the scripted NVML in C, and writes its scripts."""

import ctypes
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("scripted.c")
NAME = "libnvidia-ml.so.1"

HOPPER = {
    "power": 572_000, "limit": 700_000, "energy": 918_273_000, "temperature": 61, "util": 97, "memutil": 61,
    "total": 85899345920, "used": 76235669504, "free": 8589934592, "reserved": 1073741824, "width": 5120, "arch": 9,
    "clock1": 1755, "clock2": 2619, "maxclock1": 1980, "maxclock2": 2619, "pid": 4242, "pidmem": 75161927680,
    "ecc0": 7, "ecc1": 0, "gpm": 1, "gpm1": 98, "gpm2": 91.3, "gpm3": 24.5, "gpm5": 27.9, "gpm10": 80, "gpm20": 100,
    "gpm21": 873, "gpm60": 5000, "gpm61": 4000, "field74": 0, "field76": 0, "field269": 0, "field270": 0, "field271": 0,
    "field82": 70, "field230": 0,
}  # fmt: skip
"""A device at work, by the keys of a script."""


def compiler() -> str | None:
    """The C compiler here, if there is one."""
    return shutil.which("gcc") or shutil.which("cc")


def build(folder: Path) -> Path:
    """Compile the library into a folder."""
    made = folder / NAME
    command = [compiler(), "-shared", "-fPIC", "-O2", "-Wall", "-Werror", f"-Wl,-soname,{NAME}", "-o", made, SOURCE]
    subprocess.run(command, check=True)
    return made


def load(library: Path) -> ctypes.CDLL:
    """Load it into this process."""
    loaded = ctypes.CDLL(str(library))
    loaded.scripted_own_ns.restype = ctypes.c_double
    return loaded


def write(script: Path, devices: int, **more: float) -> None:
    """A script of equal devices; `more` are lines of their own, with "__" for "." and "_bang" for "!"."""
    lines = [f"count {devices}"]
    lines += [f"{device}.{key} {value}" for device in range(devices) for key, value in HOPPER.items()]
    lines += [
        f"{key.removeprefix('_').replace('__', '.').replace('_bang', '!')} {value}" for key, value in more.items()
    ]
    script.write_text("\n".join(lines) + "\n")
