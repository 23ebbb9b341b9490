"""The plugin inside a real vLLM, seen by the agent's own sources. Runs where GPUWATCH_VLLM_PYTHON names an interpreter.

That interpreter has vLLM (the CPU build will do) and gpuwatch-vllm. The model is a Llama of a few thousand random weights.
Starting takes vLLM half a minute on an idle machine.
"""

import asyncio
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gpuwatch.config import EngineTarget
from gpuwatch.model import STAGES, Subject
from gpuwatch.sources.ring.rings import EngineRings
from tests.sources.stub_server import HandClock
from tests.vllm_plugin.tiny_model import write_tiny_model

PYTHON = os.environ.get("GPUWATCH_VLLM_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="GPUWATCH_VLLM_PYTHON names no interpreter with vLLM in it")
PORT = 8157
START_S = 400


class Engine:
    """A vLLM that serves the tiny model, and the ring that it writes."""

    def __init__(self, folder: Path) -> None:
        self.rings = folder / "rings"
        write_tiny_model(folder / "model")
        env = {
            **os.environ, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1", "GPUWATCH_RING_DIR": str(self.rings), "VLLM_CACHE_ROOT": str(folder / "cache"),
        }  # fmt: skip
        command = [
            str(Path(PYTHON).parent / "vllm"), "serve", str(folder / "model"), "--load-format", "dummy", "--port", str(PORT),
            "--host", "127.0.0.1", "--served-model-name", "tiny", "--block-size", "32", "--max-num-seqs", "8",
            "--max-model-len", "2048", "--dtype", "float32", "--num-gpu-blocks-override", "65", "--enforce-eager",
        ]  # fmt: skip
        self.log = (folder / "log").open("w+b")
        self.process = subprocess.Popen(command, env=env, stdout=self.log, stderr=self.log, start_new_session=True)

    def wait(self) -> None:
        until = time.monotonic() + START_S
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > until:
                self.log.seek(0)
                pytest.fail(f"vLLM did not come up:\n{self.log.read().decode(errors='replace')[-4000:]}")
            self.wait_a_little()

    def wait_a_little(self) -> None:
        try:
            self.process.wait(0.5)
        except subprocess.TimeoutExpired:
            return

    def answers(self) -> bool:
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=5).status == 200
        except (urllib.error.URLError, OSError):
            return False

    def complete(self, prompt_tokens: int, max_tokens: int, first: int = 3) -> None:
        """One request, to its end."""
        body = {"model": "tiny", "prompt": [first + i % 200 for i in range(prompt_tokens)], "max_tokens": max_tokens,
                "ignore_eos": True, "temperature": 0}  # fmt: skip
        ask = urllib.request.Request(
            f"http://127.0.0.1:{PORT}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(ask, timeout=120) as answer:
            answer.read()

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)
        self.log.close()


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    engine = Engine(tmp_path_factory.mktemp("vllm"))
    try:
        engine.wait()
        yield engine
    finally:
        engine.stop()


def look(engine, url=f"http://127.0.0.1:{PORT}"):
    """Everything that the ring tells, as the agent reads it; the engine is known by its URL alone."""
    rings = EngineRings(EngineTarget(url=url, name="engine"), str(engine.rings), HandClock(time.time()))
    batch = asyncio.run(rings.poll(time.time()))
    asyncio.run(rings.aclose())
    return batch


def column(batch, name):
    return np.concatenate([frame.values[:, frame.names.index(name)] for frame in batch.frames if name in frame.names])


def test_the_agent_finds_the_ring_by_the_port_and_learns_what_the_engine_is(engine):
    engine.complete(40, 20)
    (info,) = look(engine).info
    assert info.subject == Subject(engine="engine")
    assert info.labels["model"] == "tiny"
    assert (info.labels["max_num_seqs"], info.labels["kv_total_blocks"], info.labels["kv_block_tokens"]) == (
        "8",
        "64",
        "32",
    )
    assert look(engine, url="http://127.0.0.1:1").info == (), "another port is another engine"


def test_tokens_and_requests_are_counted_as_clients_saw_them(engine):
    before = look(engine)
    for prompt, tokens in ((40, 20), (100, 30), (7, 1)):
        engine.complete(prompt, tokens, first=prompt)
    after = look(engine)

    def grown(name):
        return column(after, name)[-1] - (column(before, name)[-1] if before.frames else 0)

    assert (grown("prompt_tokens_total"), grown("generated_tokens_total"), grown("req_finished_total")) == (147, 51, 3)
    assert column(after, "req_running")[-1] == 0
    assert (np.diff(column(after, "steps_total")) == 1).all()
    seconds = column(after, "step_seconds")
    assert 0 < np.nanmedian(seconds) < 5
    assert column(after, "kv_total_blocks")[-1] == 64
    assert 0 < column(after, "kv_usage_ratio").max() <= 1


def test_each_finished_request_is_told_with_its_stages(engine):
    began = time.time()
    engine.complete(64, 25, first=9)
    (spans,) = look(engine).spans
    whole = np.flatnonzero(spans.stage == STAGES.index("request"))[-1]
    assert (spans.prompt_tokens[whole], spans.output_tokens[whole]) == (64, 25)
    assert began - 1 <= spans.start[whole] <= spans.end[whole] <= time.time()
    mine = spans.request == spans.request[whole]
    seconds = {STAGES[s]: e - b for s, b, e in zip(spans.stage[mine], spans.start[mine], spans.end[mine], strict=True)}
    assert {"queue", "prefill", "decode"} <= set(seconds)
    assert sum(v for k, v in seconds.items() if k != "request") <= seconds["request"] + 1e-6


def test_preemption_and_recomputation_are_seen(engine):
    """Eight requests that outgrow the pool of 64 blocks: the page never shows what is computed again."""
    with ThreadPoolExecutor(8) as clients:
        list(clients.map(lambda n: engine.complete(150, 400, first=10 * n + 3), range(8)))
    batch = look(engine)
    assert column(batch, "req_preempted_total")[-1] > 0
    assert column(batch, "recomputed_tokens_total")[-1] > 0
    assert column(batch, "req_waiting").max() > 0
    assert column(batch, "kv_usage_ratio").max() > 0.8


def test_the_black_box_outlives_a_killed_engine(engine):
    """Last of all: nobody closes the file, and every step up to the end is there."""
    engine.complete(20, 10)
    steps = column(look(engine), "steps_total")[-1]
    os.killpg(engine.process.pid, signal.SIGKILL)
    engine.process.wait(30)
    assert column(look(engine), "steps_total")[-1] == steps
