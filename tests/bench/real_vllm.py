"""What watching costs a real vLLM: CPU of its API server for each token, alone, scraped, with the plugin, with both.

`python -m tests.bench.real_vllm --vllm PYTHON --model DIR`. PYTHON has vLLM and gpuwatch-vllm; DIR is a small model (random
weights will do: `--load-format dummy`). Two servers run, one without the plugin; the four cases are taken by turns, each
with the same streamed requests, and compared with the case `alone` of the same round. Throughput is too noisy to compare,
and so are rounds on a machine that others use: the price of a single look, taken while the server idles, is not. From it
and the rates at which the agent looked follows its share of a core, whatever the load.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuwatch.clock import WallClock
from gpuwatch.config import EngineTarget, Lanes
from gpuwatch.sources.page.source import EngineSource
from gpuwatch.sources.ring.rings import EngineRings

PORTS = {"plain": 8171, "plugin": 8172}
CLIENTS, PROMPT_TOKENS, OUTPUT_TOKENS = 24, 32, 96
CASES = {"alone": ("plain", False), "agent": ("plain", True), "plugin": ("plugin", False), "both": ("plugin", True)}
START_S, WARM_UP_S = 400, 3.0
BUDGET, CORE_BUDGET = 0.02, 0.01


@dataclass
class Server:
    """A vLLM. `pid` is its API server, which is the process that was started."""

    process: subprocess.Popen[bytes]
    port: int
    model: str

    def cpu_s(self) -> float:
        """CPU seconds of the API server so far, to the nanosecond, its children not counted."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def main() -> None:
    """Measure and print."""
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("--vllm", required=True, metavar="PYTHON", help="an interpreter with vLLM and gpuwatch-vllm")
    ask.add_argument("--model", required=True, metavar="DIR", help="a small model folder")
    ask.add_argument("--rounds", type=int, default=12, help="how often each case is taken (default 12)")
    ask.add_argument("--seconds", type=float, default=4.0, help="how long a case lasts (default 4)")
    chosen = ask.parse_args()
    with tempfile.TemporaryDirectory() as folder, serving(chosen.vllm, chosen.model, Path(folder)) as servers:
        print(honoured(servers["plain"]))
        print(asyncio.run(prices(servers, Path(folder) / "rings", chosen.seconds)))
        costs = asyncio.run(measure(servers, Path(folder) / "rings", chosen.rounds, chosen.seconds))
    print(table(costs))


@contextmanager
def serving(python: str, model: str, folder: Path) -> Iterator[dict[str, Server]]:
    """Both servers, ready; stopped in the end."""
    servers = {name: _start(name, python, model, folder) for name in PORTS}
    try:
        for server in servers.values():
            _wait(server, folder)
        yield servers
    finally:
        for server in servers.values():
            os.killpg(server.process.pid, signal.SIGTERM)
        for server in servers.values():
            try:
                server.process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(server.process.pid, signal.SIGKILL)


def _start(name: str, python: str, model: str, folder: Path) -> Server:
    env = {
        **os.environ, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1", "GPUWATCH_RING_DIR": str(folder / "rings"),
        "GPUWATCH_RING": "on" if name == "plugin" else "off",
    }  # fmt: skip
    if name == "plain":
        env["VLLM_PLUGINS"] = ""  # the plugin is not even loaded
    command = [
        str(Path(python).parent / "vllm"), "serve", model, "--load-format", "dummy", "--host", "127.0.0.1",
        "--port", str(PORTS[name]), "--max-num-seqs", str(CLIENTS), "--max-model-len", "2048", "--dtype", "float32",
        "--block-size", "32", "--disable-uvicorn-access-log", "--enforce-eager",
    ]  # fmt: skip
    log = (folder / f"{name}.log").open("wb")
    process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    return Server(process, PORTS[name], model)


def _wait(server: Server, folder: Path) -> None:
    until = time.monotonic() + START_S
    while not _answers(server):
        try:
            server.process.wait(0.5)
            late = True
        except subprocess.TimeoutExpired:
            late = time.monotonic() > until
        if late:
            logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in folder.glob("*.log"))
            sys.exit(f"vLLM did not come up:\n{logs}")


def _answers(server: Server) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health", timeout=5):
            return True
    except OSError:
        return False


def honoured(server: Server) -> str:
    """Which of the page's two addresses honours a filter."""
    words = []
    for path in ("/metrics", "/metrics/"):
        sizes = []
        for query in ("", "?name[]=vllm:num_requests_running"):
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}{query}", timeout=10) as answer:
                sizes.append(len(answer.read()))
        words.append(f"{path}: {sizes[0]:,} bytes whole, {sizes[1]:,} with ?name[]=")
    return "; ".join(words)


async def prices(servers: dict[str, Server], rings: Path, seconds: float) -> str:
    """What the agent's looks cost the API server while it idles: without a ring, and with one that moves."""
    lines = [
        f"{'API server':<12}{'of a core':>12}{'budget':>12}   at the agent's default rates, beyond the same time unwatched"
    ]
    for name, words in (("plain", "page"), ("plugin", "page + ring")):
        server, spent = servers[name], {True: 0.0, False: 0.0}
        for watched in (False, True) * 3:
            watching = asyncio.create_task(_watch(server, rings)) if watched else None
            if name == "plugin":
                await _client(server, 0.0, 1, tokens=8)  # one step or two, so that the ring is live
            await asyncio.sleep(WARM_UP_S)  # the agent's first looks are whole pages
            before = server.cpu_s()
            await asyncio.sleep(seconds)
            spent[watched] += server.cpu_s() - before
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
        share = (spent[True] - spent[False]) / (3 * seconds)
        lines.append(f"{words:<12}{share:>12.2%}{CORE_BUDGET:>12.0%}   {'ok' if share <= CORE_BUDGET else 'over'}")
    return "\n".join(lines)


async def measure(servers: dict[str, Server], rings: Path, rounds: int, seconds: float) -> dict[str, list[float]]:
    """CPU seconds of the API server for each token, by case: one number a round. The first round only warms up."""
    costs: dict[str, list[float]] = {case: [] for case in CASES}
    for turn in range(rounds + 1):
        order = list(CASES) if turn % 2 else list(CASES)[::-1]
        for case in order:
            name, watched = CASES[case]
            cost = await _cost(servers[name], seconds, rings if watched else None)
            if turn:
                costs[case].append(cost)
    return costs


async def _cost(server: Server, seconds: float, rings: Path | None) -> float:
    watching = asyncio.create_task(_watch(server, rings)) if rings is not None else None
    before, begun = server.cpu_s(), time.monotonic()
    tokens = sum(await asyncio.gather(*(_client(server, begun + seconds, n) for n in range(CLIENTS))))
    spent = server.cpu_s() - before
    if watching is not None:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    return spent / tokens


async def _client(server: Server, until: float, number: int, tokens: int = OUTPUT_TOKENS) -> int:
    """Streams a request, and others after it until the time is over; how many tokens came."""
    came = 0
    while not came or time.monotonic() < until:
        prompt = [3 + (number * 31 + i * 7 + came) % 200 for i in range(PROMPT_TOKENS)]
        body = json.dumps(
            {"model": server.model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}
        ).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.read()
        while chunk := await reader.read():
            answer += chunk
        writer.close()
        if b" 200 " not in answer[:20]:
            raise SystemExit(f"vLLM answers {answer[:300]!r}")
        came += tokens
    return came


async def _watch(server: Server, rings: Path) -> None:
    """The agent's look at page and ring, at its default rates."""
    clock, lanes = WallClock(), Lanes()
    target = EngineTarget(url=f"http://127.0.0.1:{server.port}", name="engine")
    ring = EngineRings(target, str(rings), clock, lanes.steps_hz)
    page = EngineSource(target, clock, None, lanes, None, ring.is_live)
    try:
        await asyncio.gather(*(_follow(source, clock) for source in (page, ring)))
    finally:
        await asyncio.gather(page.aclose(), ring.aclose())


async def _follow(source: EngineSource | EngineRings, clock: WallClock) -> None:
    while True:
        await source.poll(clock.now())
        await asyncio.sleep(source.interval_s)


def table(costs: dict[str, list[float]]) -> str:
    """CPU a token of each case, and what it adds to that of the same round alone."""
    lines = [f"{'API server':<12}{'µs a token':>12}{'added':>10}{'± (95 %)':>10}   budget"]
    for case, taken in costs.items():
        line = f"{case:<12}{statistics.median(taken) * 1e6:>12.1f}"
        if case != "alone":
            added = [cost / bare - 1 for cost, bare in zip(taken, costs["alone"], strict=True)]
            half = 1.96 * statistics.stdev(added) / math.sqrt(len(added)) if len(added) > 1 else math.nan
            middle = statistics.median(added)
            line += f"{middle:>+10.1%}{half:>10.1%}   ≤ {BUDGET:+.0%} {_judged(middle, half)}"
        lines.append(line)
    return "\n".join(lines)


def _judged(middle: float, half: float) -> str:
    """Within the budget, over it, or too widely spread to say."""
    if middle + half <= BUDGET:
        return "ok"
    return "over" if middle - half > BUDGET else "not decided"


if __name__ == "__main__":
    main()
