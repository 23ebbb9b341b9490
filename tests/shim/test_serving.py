"""`serve` as a process, and what it can be asked to serve: pages, ring, spans, modelled devices, model folders."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from click.testing import CliRunner

from engine_shim import cli
from engine_shim.clock import RealClock
from engine_shim.serving import ServeOptions, build
from tests.shim.live_engine import live_engine

SECRET = "Zq7~private"
ANSWER = {"prompt": SECRET * 9, "max_tokens": 24, "temperature": 0}


@contextmanager
def served(*arguments: str, env: dict[str, str] | None = None):
    """A process that serves; yields it and its address, and ends it with SIGTERM."""
    command = [sys.executable, "-m", "engine_shim", "--port", "0", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | (env or {})
    )
    try:
        lines = []
        while not (line := process.stdout.readline()).startswith("serving "):
            lines.append(line)
            assert line, "".join(lines)  # end of output: it did not start
        yield process, line.split()[-1]
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


@contextmanager
def span_receiver():
    """A real HTTP receiver for OTLP; yields its address, the bodies, and an event for the first one."""
    bodies: list[bytes] = []
    came = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()
            came.set()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{receiver.server_port}", bodies, came
        receiver.shutdown()


def test_no_prompt_and_no_completion_leaves_by_log_page_span_or_ring(tmp_path):
    """A served, a refused and an aborted prompt are found nowhere but in the answer: not even at log level info."""
    with span_receiver() as (endpoint, bodies, came):
        arguments = ("--ring-dir", str(tmp_path), "--otlp-endpoint", endpoint, "--log-level", "info")
        with served(*arguments, "--max-model-len", "4000") as (process, url):
            answer = httpx.post(f"{url}/v1/completions", json=ANSWER).json()["choices"][0]["text"]
            refused = httpx.post(f"{url}/v1/completions", json=ANSWER | {"prompt": SECRET * 999})
            with httpx.stream(
                "POST", f"{url}/v1/completions", json=ANSWER | {"max_tokens": 3000, "stream": True}
            ) as hung_up:
                next(hung_up.iter_raw())
            page = httpx.get(f"{url}/metrics").content
            assert came.wait(20), "no span came"
            process.terminate()
            output = process.stdout.read()
    [ring] = tmp_path.glob("*.ring")
    assert refused.status_code == 400
    assert len(answer) == 24
    assert b"gen_ai" in b"".join(bodies)
    for place in (output.encode(), page, *bodies, ring.read_bytes(), refused.content):
        assert SECRET.encode() not in place
        assert answer[:8].encode() not in place


def test_sigterm_ends_the_server_in_good_order():
    """SIGTERM with a stream under way ends the process soon, without a traceback."""
    with served() as (process, url):
        wish = {"prompt": "a", "max_tokens": 12_000, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=wish, timeout=30) as stream:
            next(stream.iter_raw())
            process.send_signal(signal.SIGTERM)
        assert process.wait(20) in (0, -signal.SIGTERM)
        assert "Traceback" not in process.stdout.read()


def test_clients_that_stay_hear_that_the_server_stops():
    """After SIGTERM they have a few seconds; then each gets an error object, and the log no traceback."""
    with served("--least-step-s", "0.05") as (process, url):
        wishes = [{"prompt": "a", "max_tokens": 8000, "stream": stream} for stream in (True, False)]
        with ThreadPoolExecutor(2) as pool:
            answers = [pool.submit(httpx.post, f"{url}/v1/completions", json=wish, timeout=30) for wish in wishes]
            page = f"{url}/metrics?name[]=shim:num_requests_running"
            while not httpx.get(page).text.splitlines()[-1].endswith(" 2"):
                assert not any(answer.done() for answer in answers)
            process.send_signal(signal.SIGTERM)
            streamed, whole = (answer.result() for answer in answers)
        assert process.wait(20) in (0, -signal.SIGTERM)
        assert "Traceback" not in process.stdout.read()
    assert (streamed.status_code, whole.status_code) == (200, 503)
    assert "shutting_down" in streamed.text.split("\n\n")[-3]
    assert whole.json()["error"]["code"] == "shutting_down"


def test_a_crash_fault_kills_the_process():
    """An outage ends the process without good-byes, as a crash does."""
    command = [sys.executable, "-m", "engine_shim", "--runner", "model", "--model", "7b", "--port", "0"]
    done = subprocess.run([*command, "--fault", "crash:at_s=0.2"], capture_output=True, timeout=30, check=False)
    assert (done.returncode, b"Traceback" in done.stderr) == (-signal.SIGKILL, False)


def test_both_metric_paths_filter_by_name():
    """/metrics and /metrics/ show everything, or the families that are asked for."""
    with live_engine() as engine:
        for path in ("/metrics", "/metrics/"):
            whole = httpx.get(engine.url + path)
            some = httpx.get(engine.url + path, params={"name[]": ["shim:num_requests_running", "shim:steps_total"]})
            families = [line.split()[2] for line in some.text.splitlines() if line.startswith("# TYPE")]
            assert sorted(families) == ["shim:num_requests_running", "shim:steps_total"]
            assert whole.headers["content-type"].startswith("text/plain; version=0.0.4")
            assert len(whole.text) > 5 * len(some.text)


def test_there_is_no_gpu_page_on_torch():
    """Nobody is to mistake an absent device for an idle one: 404 with the reason."""
    with live_engine() as engine:
        response = httpx.get(engine.url + "/gpu/metrics")
        assert (response.status_code, "no modelled device" in response.text) == (404, True)
        assert httpx.get(engine.url + "/version").json().keys() == {"version"}


def test_a_modelled_device_takes_its_time_and_shows_its_readings():
    """Fifty tokens of an 8b model on an h100 take at least what bandwidth allows, and the page shows a busy device."""
    clock = RealClock()
    with live_engine(ServeOptions(runner="model", device="h100"), model="8b") as engine:
        httpx.get(engine.url + "/gpu/metrics")
        begun = clock.now()
        answer = httpx.post(
            f"{engine.url}/v1/completions", json={"prompt": "a" * 200, "max_tokens": 200}, timeout=30
        ).json()
        took_s = clock.now() - begun
        page = httpx.get(engine.url + "/gpu/metrics").text
        weights_s = engine.serving.engine.settings.shape.weight_bytes("bf16") / 3.35e12
    assert answer["usage"]["completion_tokens"] == 200
    assert len(answer["choices"][0]["text"]) == 200
    assert took_s > 200 * weights_s
    readings = {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line[0] != "#"}
    assert 0.3 < readings["DCGM_FI_PROF_DRAM_ACTIVE"] <= 1
    assert readings["DCGM_FI_DEV_GPU_UTIL"] > 50
    assert readings["DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"] < 0.1


def test_a_model_folder_is_served_with_its_own_tokenizer(tmp_path):
    """A folder as transformers saves it, with a tokenizer.json, answers under its name with the oracle's tokens."""
    import tokenizers
    import torch
    from tokenizers import models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    folder = tmp_path / "wordy"
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    oracle = LlamaForCausalLM(LlamaConfig(vocab_size=40, num_key_value_heads=2, initializer_range=0.3, **shape)).eval()
    oracle.save_pretrained(folder)
    words = {f"w{index}": index for index in range(40)}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    wish = {"prompt": "w3 w5 w7", "max_tokens": 12, "temperature": 0, "ignore_eos": True, "model": "wordy"}
    with live_engine(model=str(folder)) as engine:
        text = httpx.post(f"{engine.url}/v1/completions", json=wish).json()["choices"][0]["text"]
    ids = [3, 5, 7]
    with torch.inference_mode():
        for _ in range(12):
            ids.append(int(oracle(torch.tensor([ids])).logits[0, -1].argmax()))
    assert text.split() == [f"w{index}" for index in ids[3:]]


WRONG_OPTIONS = {
    "an unknown model": (["--model", "gpt-9"], "gpt-9"),
    "a budget below the sequences": (["--max-step-tokens", "8"], "max_step_tokens"),
    "an unknown device": (["--runner", "model", "--device", "h900"], "h900"),
    "a device that torch has not": (["--device", "cuda:99"], "cuda:99"),
    "fp8 on torch": (["--dtype", "fp8"], "fp8"),
    "a KV type that is not known": (["--kv-dtype", "int3"], "kv-dtype"),
    "a fault without times": (["--fault", "hung_step"], "at_s"),
    "a fault that is no number": (["--fault", "crash:at_s=soon"], "crash:at_s=soon"),
    "a folder without a config": (["--model", "{tmp}"], "config.json"),
    "blocks that do not divide the pool": (["--kv-pool-tokens", "1000", "--block-tokens", "24"], "use 984 or 1008"),
    "a pool smaller than a request": (["--kv-pool-tokens", "1600", "--max-model-len", "1601"], "max_model_len (1601)"),
    "a ring where no folder can be": (["--ring-dir", "{tmp}/file/ring"], "file/ring"),
    "an address of nobody": (["--host", "300.1.1.1"], "300.1.1.1"),
    "a receiver that is no address": (["--otlp-endpoint", "localhost:4318"], "otlp_endpoint"),
    "an end that is no token": (["--eos-token-id", "512"], "eos_token_id 512"),
    "a 70b model on one card": (["--runner", "model", "--model", "70b", "--device", "h100"], "tensor_parallel"),
}


@pytest.mark.parametrize(("arguments", "named"), WRONG_OPTIONS.values(), ids=WRONG_OPTIONS.keys())
def test_wrong_options_end_with_exit_code_2_and_a_name(arguments, named, tmp_path):
    """Before anything listens: exit 2, and the message names what is wrong."""
    (tmp_path / "file").touch()
    result = CliRunner().invoke(
        cli.main, ["serve", *(argument.replace("{tmp}", str(tmp_path)) for argument in arguments)]
    )
    assert result.exit_code == 2
    assert named in result.output


def test_a_port_that_is_taken_is_named_at_once():
    """Before a model is loaded: exit 2 with the address."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = CliRunner().invoke(cli.main, ["serve", "--port", str(port), "--model", "nothing is loaded"])
    assert result.exit_code == 2
    assert f"127.0.0.1:{port}: Address already in use" in result.output


def test_the_longest_request_is_only_held_to_the_pool_where_it_was_asked_for():
    """The default length is more than a small pool holds; blocks of any size make a pool of their own."""
    serving = build(ServeOptions(), {"block_tokens": 24})
    assert serving.engine.settings.kv_pool_tokens % 24 == 0
    assert serving.model.max_model_len > serving.model.kv_capacity_tokens
    build(ServeOptions(), {"kv_pool_tokens": 160, "max_model_len": 161, "accept_oversized": True})


def test_every_setting_is_an_option_with_help():
    """Each key of EngineSettings has an option of its name and a sentence that explains it."""
    import dataclasses

    from engine_shim.settings.engine import EngineSettings

    options = {option.name: option.help for option in cli.serve.params}
    for field in dataclasses.fields(EngineSettings):
        assert len(options[field.name].split("[")[0]) > 10, field.name


def test_the_same_engine_keeps_the_uuid_of_its_modelled_device():
    """A restart must not look like a new GPU; another rank is another GPU."""
    first, again, other = (
        build(ServeOptions(runner="model", rank=rank), {"model": "7b"}).telemetry.info.gpu_uuid for rank in (0, 0, 1)
    )
    assert first == again != other


def test_help_names_both_commands_and_serving_is_the_default():
    """`--help` answers without torch; options without a command are those of serve."""
    result = CliRunner().invoke(cli.main, ["--help"])
    assert result.exit_code == 0
    assert "serve" in result.output
    assert "simulate" in result.output
    assert CliRunner().invoke(cli.main, ["--port", "99999999"]).exit_code == 2
