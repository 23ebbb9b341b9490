"""`python -m engine_shim simulate`: what it writes, and how it refuses."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine_shim.simulation.command import simulate

SHORT = ["healthy_long_prefill", "--duration", "5"]


def run(*args: str) -> tuple[int, bytes, str]:
    done = CliRunner().invoke(simulate, args)
    return done.exit_code, done.stdout_bytes, done.stderr


def test_a_shipped_scenario_is_found_by_name():
    code, out, err = run(*SHORT)
    assert (code, err) == (0, "")
    header = json.loads(out.splitlines()[0])
    assert header["meta"] == {"scenario": "healthy_long_prefill", "device": "h100", "seed": 1, "model": "7b"}
    assert json.loads(out.splitlines()[-1])["t"] == header["t"] + 5


def test_a_file_is_written_packed_if_its_name_says_so(tmp_path: Path):
    plain, packed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz"
    assert run(*SHORT, "--out", str(plain))[0] == 0
    assert run(*SHORT, "--out", str(packed))[0] == 0
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()


def test_a_longer_duration_stretches_the_scenario():
    code, out, _ = run("healthy_long_prefill", "--duration", "302", "--telemetry", "vllm-defaults")
    last = json.loads(out.splitlines()[-1])
    assert (code, last["src"]) == (0, "end")
    assert last["t"] == 1_764_000_302


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["no_such"], "no scenario 'no_such'; give a path, or one of: batch_thrashing"),
        (["no_such.toml"], "no_such.toml: No such file"),
        ([*SHORT, "--set", "engine.max_num_seq=3"], "healthy_long_prefill.toml: engine: unknown key 'max_num_seq'"),
        ([*SHORT, "--set", "load[9].rho=3"], "--set: load[9].rho: there is no such place"),
        ([*SHORT, "--set", "nonsense"], "--set nonsense: needs KEY=VALUE"),
        ([*SHORT, "--cure"], "healthy_long_prefill.toml: cure: is missing"),
        ([*SHORT, "--set", "engine.model=70b"], "leaves no room for KV"),
        ([*SHORT, "--set", "engine.kv_pool_tokens=1000"], "block_tokens (16) does not divide kv_pool_tokens (1000)"),
        (
            ["batch_thrashing", "--set", "engine.max_model_len=131000"],
            "max_model_len (131000) is more than the KV pool",
        ),
        (["batch_thrashing", "--set", "load[0].prompt_tokens=150000"], "the shortest request of load 'short' needs"),
        ([*SHORT, "--out", "/no/such/folder/x"], "/no/such/folder/x: No such file"),
        ([*SHORT, "--device", "abacus"], "device 'abacus' is not known"),
    ],
)
def test_wrong_input_ends_with_2_and_says_where(args: list[str], message: str):
    code, out, err = run(*args)
    assert code == 2
    assert message in err
    assert out == b""


def test_a_cure_is_played_on_request():
    args = ["head_of_line_blocking", "--duration", "5", "--telemetry", "full"]
    code, out, _ = run(*args, "--cure")
    assert code == 0
    assert b'"arg_admission":"bypass"' in out
    assert b'"arg_admission":"fifo"' in run(*args)[1]


def test_a_reader_that_goes_away_ends_it_quietly():
    """As in `simulate … | head -1`."""
    command = [sys.executable, "-m", "engine_shim", "simulate", "healthy_long_prefill"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == b""


def test_another_process_writes_the_same_bytes():
    """Nothing depends on hash seeds, addresses or the wall clock."""
    command = [sys.executable, "-m", "engine_shim", "simulate", "batch_thrashing", "--duration", "30"]
    runs = [
        subprocess.run(command, env={"PYTHONHASHSEED": seed}, capture_output=True, timeout=60, check=True).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert len(runs[0]) > 100_000
