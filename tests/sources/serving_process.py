"""Starts prometheus_server.py in a process of its own and says when it answers."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

SERVER = Path(__file__).with_name("prometheus_server.py")


@contextmanager
def serving(kind: str) -> Iterator[tuple[str, psutil.Process]]:
    """The address of a server of this kind, and its process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ) | ({"PROMETHEUS_MULTIPROC_DIR": folder} if kind == "multiprocess" else {})
        process = subprocess.Popen([sys.executable, SERVER, kind, str(port)], env=environment)
        try:
            _wait(process, port)
            yield f"http://127.0.0.1:{port}", psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(10)


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    """Until it accepts connections; a start that fails is an error."""
    for _ in range(2000):
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        with socket.socket() as probe:
            probe.settimeout(0.2)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
            try:
                process.wait(0.01)
            except subprocess.TimeoutExpired:
                continue
    raise RuntimeError("the server does not answer")
