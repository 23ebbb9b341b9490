"""The whole agent as a process beside a real engine under load: its CPU, its memory, its first sample."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import psutil

from tests.bench.row import Row
from tests.bench.start import GPUWATCH

REQUESTS_PER_S, WATCH_S, SETTLE_S = 25, 15.0, 5.0


def cpu() -> Row:
    """Share of a core with the default lanes."""
    share, _, _ = _beside_a_loaded_engine()
    return Row("%", 1.0, share * 100, note=_WHAT)


def memory() -> Row:
    """Resident memory after the same."""
    _, resident, _ = _beside_a_loaded_engine()
    return Row("MB", 60, resident / 1e6)


def first_sample() -> Row:
    """From the start of the process until /metrics shows a signal of the engine."""
    _, _, seconds = _beside_a_loaded_engine()
    return Row("s", 1.0, seconds)


_WHAT = f"ring, page, spans of {REQUESTS_PER_S} requests/s, host, rules and recorder at the default rates, over {WATCH_S:.0f} s"


@cache
def _beside_a_loaded_engine() -> tuple[float, float, float]:
    """(CPU share, resident bytes, seconds to the first sample)."""
    __import__("gpuwatch.cli.main")
    engine_port, agent_port, otlp_port = _free_port(), _free_port(), _free_port()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        home = Path(folder)
        (home / "gpuwatch.toml").write_text(
            f'listen = "127.0.0.1:{agent_port}"\notlp_listen = "127.0.0.1:{otlp_port}"\nring_dir = "{home}"\n'
            f'[[engines]]\nname = "shim"\nurl = "http://127.0.0.1:{engine_port}"\n'
        )
        engine = [sys.executable, "-m", "engine_shim", "serve", "--runner", "model", "--model", "1b", "--ring"]
        engine += ["--ring-dir", folder, "--port", str(engine_port), "--otlp-endpoint", f"http://127.0.0.1:{otlp_port}"]
        stack.enter_context(_running(engine))
        _wait(lambda: _answers(engine_port, "/health"))
        begun = time.perf_counter()
        agent = [*GPUWATCH, "run", "--config", str(home / "gpuwatch.toml"), "--state-dir", str(home / "state")]
        process = stack.enter_context(_running(agent))
        _wait(lambda: b"\ngpuwatch_req_running{" in _page(agent_port))
        first_s = time.perf_counter() - begun
        stack.enter_context(_load(engine_port))
        return *_watched(process.pid), first_s


def _watched(pid: int) -> tuple[float, float]:
    process, pause = psutil.Process(pid), threading.Event()
    pause.wait(SETTLE_S)
    before = sum(process.cpu_times()[:2])
    pause.wait(WATCH_S)
    return (sum(process.cpu_times()[:2]) - before) / WATCH_S, float(process.memory_info().rss)


@contextlib.contextmanager
def _load(port: int) -> Iterator[None]:
    """REQUESTS_PER_S short completions a second, from a few threads."""
    stop, workers = threading.Event(), 8

    def send(offset_s: float) -> None:
        stop.wait(offset_s)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        body = json.dumps({"model": "1b", "prompt": list(range(200)), "max_tokens": 16, "ignore_eos": True})
        while not stop.wait(workers / REQUESTS_PER_S):
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            connection.getresponse().read()
        connection.close()

    threads = [threading.Thread(target=send, args=(i / REQUESTS_PER_S,)) for i in range(workers)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def _running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()


def _wait(ready: object, limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while not ready():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise TimeoutError("it did not become ready")
        threading.Event().wait(0.02)


def _page(port: int) -> bytes:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2) as answer:
            return bytes(answer.read())
    except (urllib.error.URLError, OSError):
        return b""


def _answers(port: int, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
