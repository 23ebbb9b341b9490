"""Two public load generators against the bundled engine: every request is served, counted and measured.

They are large (over a gigabyte each) and live in environments of their own, so they are looked for and skipped where they
are missing. To run these tests:

    python3.11 -m venv /tmp/guidellm
    /tmp/guidellm/bin/pip install torch==2.13.0 && /tmp/guidellm/bin/pip install guidellm==0.8.1
    python3.11 -m venv /tmp/aiperf && /tmp/aiperf/bin/pip install aiperf==0.13.0
    GUIDELLM=/tmp/guidellm/bin/guidellm AIPERF=/tmp/aiperf/bin/aiperf python -m pytest -m nightly tests/acceptance

`torch==2.13.0` first keeps pip from fetching CUDA. Both want the model's tokenizer as a local folder; aiperf must not
have HF_HUB_OFFLINE set.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from engine_shim.model.tokens import PLACEHOLDER, CharTokenizer
from tests.shim.live_engine import LiveEngine, live_engine

pytestmark = pytest.mark.nightly

REQUESTS, CLIENTS, TOKENS_IN, TOKENS_OUT = 24, 4, 48, 16
STREAMING = pytest.mark.parametrize("streaming", [True, False], ids=["streaming", "whole"])
ENDPOINT = pytest.mark.parametrize("endpoint", ["chat", "completions"])


def program(name: str) -> str:
    """The load generator's command, or a skip that says how to get it."""
    found = os.environ.get(name.upper()) or shutil.which(name)
    if not found:
        pytest.skip(f"{name} is not installed; see this file's docstring, and name it with ${name.upper()}")
    return found


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's tokenizer as a Hugging Face folder: a character, a token."""
    folder = tmp_path_factory.mktemp("tokenizer")
    characters = CharTokenizer(256).decode(list(range(256)))
    made = tokenizers.Tokenizer(models.WordLevel({c: i for i, c in enumerate(characters)}, unk_token=PLACEHOLDER))
    made.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex("."), "isolated")  # type: ignore[assignment]
    made.decoder = decoders.Fuse()  # type: ignore[assignment]
    made.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 8192, "unk_token": PLACEHOLDER}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def run(command: list[str], folder: Path, **environment: str) -> str:
    """Run a generator to its end; what it printed."""
    inherited = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
    ended = subprocess.run(
        command, cwd=folder, env=inherited | environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    return ended.stdout


def assert_served(engine: LiveEngine, tokens_out: int) -> None:
    """The engine has served them all to the end, and holds nothing back."""
    left = [request for request, _ in engine.witness.wait_for_finished(REQUESTS)]
    whole = [request for request in left if request.output_tokens == tokens_out]
    assert {request.finish_reason for request in whole} == {"length"}
    assert len(whole) >= REQUESTS  # a generator may send one more to see whether the server is up
    assert engine.serving.engine.pool.used_blocks == 0


@ENDPOINT
@STREAMING
def test_guidellm(tokenizer: Path, tmp_path: Path, endpoint: str, streaming: bool) -> None:
    guidellm, report = program("guidellm"), tmp_path / "report.json"
    path = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}[endpoint]
    with live_engine() as engine:
        backend = f"kind=openai_http,target={engine.url},request_format={path},stream={str(streaming).lower()}"
        command = [
            guidellm, "run", "--backend", backend, "--profile", f"kind=concurrent,streams={CLIENTS}",
            "--constraint", f"kind=max_requests,count={REQUESTS}", "--tokenizer", f"kind=hf_auto,model={tokenizer}",
            "--data", f"kind=synthetic_text,prompt_tokens={TOKENS_IN},output_tokens={TOKENS_OUT}",
            "--output", f"kind=json,path={report}", "--disable-console",
        ]  # fmt: skip
        run(command, tmp_path, HF_HUB_OFFLINE="1")
        assert_served(engine, TOKENS_OUT)
    told: dict[str, Any] = json.loads(report.read_text())["benchmarks"][0]
    totals = told["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"], totals["incomplete"]) == (REQUESTS, 0, 0)
    assert told["metrics"]["output_token_count"]["successful"]["median"] == TOKENS_OUT
    if streaming:
        assert told["metrics"]["time_to_first_token_ms"]["successful"]["median"] > 0


@ENDPOINT
@STREAMING
def test_aiperf(tokenizer: Path, tmp_path: Path, endpoint: str, streaming: bool) -> None:
    aiperf = program("aiperf")
    with live_engine() as engine:
        command = [
            aiperf, "profile", "-m", "tiny", "--url", engine.url, "--endpoint-type", endpoint,
            *(["--streaming"] if streaming else []),
            "--concurrency", str(CLIENTS), "--request-count", str(REQUESTS),
            "--synthetic-input-tokens-mean", str(TOKENS_IN), "--output-tokens-mean", str(TOKENS_OUT),
            "--tokenizer", str(tokenizer), "--random-seed", "1", "--ui", "none", "--artifact-dir", str(tmp_path / "out"),
            "--extra-inputs", "temperature:0.7", "--extra-inputs", "top_p:0.9", "--extra-inputs", "seed:7",
        ]  # fmt: skip
        run(command, tmp_path)
        assert_served(engine, TOKENS_OUT)
    told = json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text())
    assert told["error_summary"] == []
    assert told["request_count"]["avg"] == REQUESTS
    assert told["usage_completion_tokens"]["avg"] == TOKENS_OUT
    assert told["output_sequence_length"]["avg"] == pytest.approx(TOKENS_OUT, abs=1)
    if streaming:
        assert told["inter_token_latency"]["avg"] > 0
