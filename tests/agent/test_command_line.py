"""The commands as their users meet them: exit codes, messages, and output that a machine can read."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuwatch.cli.main import main
from gpuwatch.config import Config
from gpuwatch.incidents.verdict import to_json
from gpuwatch.pipeline import Pipeline
from gpuwatch.recording.recorder import Recorder
from gpuwatch.rules import load_rules
from gpuwatch.sinks.store import Store
from tests.agent.builders import START

ROOT = Path(__file__).parents[2]


def gpuwatch(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def state(tmp_path_factory, world_calls):
    """What an agent leaves that watched an incident: its folder, and the verdict that it gave."""
    folder = tmp_path_factory.mktemp("state")
    recorder, pipeline = Recorder(folder, Config()), Pipeline(Config())
    store = Store(folder / "incidents.db")
    for now, batches in world_calls:
        tick = pipeline.step(*recorder.record(now, batches))
        recorder.noticed(now, pipeline, tick.transitions)
        store.add(tick.transitions)
        recorder.tidy(now)
    recorder.close(world_calls[-1][0])
    store.close()
    return folder, pipeline.verdict()


def test_diagnose_reads_a_capture_and_check_sets_the_exit_code(world):
    """The verdict alone on stdout; 1 only where --check asks for it."""
    done = gpuwatch("diagnose", world, "--json")
    assert done.exit_code == 0
    verdict = json.loads(done.stdout)
    assert verdict["incidents"][0]["rule"] == "engine_hang"
    assert gpuwatch("diagnose", world, "--json", "--check").exit_code == 1
    text = gpuwatch("diagnose", world)
    assert (text.exit_code, "engine_hang" in text.stdout) == (0, True)


def test_a_cut_capture_is_diagnosed_and_said_to_be_cut(world, tmp_path):
    """Everything up to the cut counts; the qualification goes to stderr."""
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(b"".join(world.read_bytes().splitlines(keepends=True)[:300]))
    done = gpuwatch("diagnose", cut, "--json")
    assert done.exit_code == 0
    json.loads(done.stdout)
    assert "no end record" in done.stderr


def test_incidents_and_postmortem_come_from_the_state_folder(state, tmp_path):
    """List, one, and the postmortem by the beginning of an id; the capsule replays to the same incident."""
    folder, verdict = state
    listed = json.loads(gpuwatch("incidents", "--state-dir", folder, "--json").stdout)["incidents"]
    assert {i["id"] for i in listed} == {i.id for i in verdict.incidents}
    worst = verdict.incidents[0]
    table = gpuwatch("incidents", "--state-dir", folder).stdout
    assert "engine_hang" in table
    one = gpuwatch("incidents", worst.id[:8], "--state-dir", folder)
    assert f"id {worst.id}" in one.stdout
    assert "opened" in one.stdout
    out = tmp_path / "p.html"
    done = gpuwatch("postmortem", worst.id[:8], "--state-dir", folder, "--out", out)
    assert done.exit_code == 0, done.output
    assert "engine_hang" in out.read_text()
    assert gpuwatch("incidents", "zz", "--state-dir", folder).exit_code == 2


def test_replay_says_the_same_verdict_as_the_run(tmp_path, world_calls):
    """Byte for byte; without --json each transition is told on the way."""
    from gpuwatch.recording.capsule import CapsuleWriter

    live = Pipeline(Config())
    with CapsuleWriter(tmp_path / "run.capsule", Config()) as writer:
        for call in world_calls:
            writer.append(*call)
            live.step(*call)
    done = gpuwatch("replay", tmp_path / "run.capsule", "--json")
    assert done.stdout_bytes == to_json(live.verdict()) + b"\n"
    assert gpuwatch("diagnose", tmp_path / "run.capsule", "--json").stdout_bytes == done.stdout_bytes
    told = gpuwatch("replay", tmp_path / "run.capsule").stdout
    assert "opened" in told.splitlines()[0]
    assert gpuwatch("postmortem", tmp_path / "run.capsule", "--out", tmp_path / "p.md").exit_code == 0
    assert "engine_hang" in (tmp_path / "p.md").read_text()


def test_rules_are_listed_with_what_they_need():
    """Every class, for people and for machines."""
    listed = json.loads(gpuwatch("rules", "--json").stdout)
    assert [r["rule"] for r in listed] == list(load_rules())
    one = json.loads(gpuwatch("rules", "overload", "--json").stdout)
    assert one["alert"] == "GpuwatchOverload"
    assert one["needs"]
    assert "[rules.overload]" in gpuwatch("rules", "overload").stdout
    assert gpuwatch("rules", "overlod").exit_code == 2


def test_doctor_says_what_is_dark_and_what_would_help():
    """An engine that does not answer is no error of the doctor's."""
    done = gpuwatch("doctor", "--engine", "http://127.0.0.1:1", "--seconds", "1", "--json")
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    page = next(s for s in report["sources"] if s["role"] == "engine")
    assert (page["looks"], page["failed"]) == (1, 1)
    ring = next(s for s in report["sources"] if s["role"] == "steps")
    assert (ring["failed"], ring["error"].startswith("no ring of this engine in")) == (1, True)
    blind = {b["rule"]: b for b in report["blind"]}
    assert blind["batch_thrashing"]["missing"]
    assert blind["batch_thrashing"]["cure"]
    assert gpuwatch("doctor").exit_code == 2


WRONG = {
    "a config that is not there": (("run", "--config", "nix.toml"), "nix.toml: No such file"),
    "a config with an unknown key": (("run", "--config", "{bad}"), "slo.ttft: unknown key"),
    "a rule that is not there": (("diagnose", "x", "--config", "{rule}"), "rules.nope: no such rule"),
    "an engine that is no URL": (("run", "--engine", "vllm"), "--engine: engines[0].url"),
    "a capsule that is none": (("replay", "{bad}"), "bad.toml: not a gpuwatch capsule"),
    "a capsule that is not there": (("replay", "nix.capsule"), "nix.capsule: No such file"),
    "a source of another kind": (("diagnose", "{bad}"), "nothing in it is known"),
    "a capture with a broken line": (("diagnose", "{line}"), "line 2"),
    "no incidents here": (("incidents", "--state-dir", "nix"), "no incidents recorded here"),
    "an unknown command": (("explode",), "No such command"),
    "an unknown option": (("rules", "--explode"), "No such option"),
    "a state folder that is a file": (("run", "--state-dir", "{bad}"), "bad.toml"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_input_ends_with_2_and_names_the_file_or_key(tmp_path, what):
    """Never a traceback."""
    arguments, says = WRONG[what]
    files = {
        "bad": "[slo]\nttft = 1\n",
        "rule": "[rules.nope]\n",
        "line": '{"gpuwatch_capture": 1, "producer": "x", "clock": "virtual", "t": 1764000000, "engine": "a"}\n{"t": 1\n',
    }
    paths = {}
    for name, text in files.items():
        paths[name] = tmp_path / f"{name}.toml"
        paths[name].write_text(text)
    done = gpuwatch(*(a.format(**paths) for a in arguments))
    assert done.exit_code == 2, done.output
    assert says in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(shell):
    """For `eval`."""
    done = gpuwatch("completion", shell)
    assert (done.exit_code, "_GPUWATCH_COMPLETE" in done.stdout) == (0, True)


def test_help_imports_nothing_heavy():
    """What makes `--help` fast: neither numpy nor a web framework is loaded for it."""
    program = (
        "import sys; sys.argv = ['gpuwatch', '--help']\n"
        "from gpuwatch.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: print(sorted({'numpy', 'httpx', 'starlette', 'jinja2', 'msgspec', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_agent_starts_serves_and_stops_on_sigterm(tmp_path):
    """A real process: JSON log, an answer on its port, a clean end with everything on disk."""
    config = tmp_path / "gpuwatch.toml"
    config.write_text('listen = "127.0.0.1:0"\notlp_listen = "127.0.0.1:0"\n')
    process = subprocess.Popen(
        [sys.executable, "-c", "from gpuwatch.cli.main import main; main()", "run", "--config", str(config),
         "--engine", "http://127.0.0.1:1", "--state-dir", str(tmp_path / "state")],
        cwd=ROOT, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONWARNINGS": "error"},
    )  # fmt: skip
    assert process.stderr is not None
    said = [json.loads(process.stderr.readline()) for _ in range(3)]  # watching, warm, the engine does not answer
    messages = " ".join(line["message"] for line in said)
    assert "watching 127.0.0.1:1" in messages
    assert "refused" in messages
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 0
    last = [json.loads(line) for line in process.stderr]
    process.stderr.close()
    assert last[-1]["message"] == "stopped"
    assert all(line["at"] > START for line in [*said, *last])
    assert (tmp_path / "state" / "incidents.db").exists()
