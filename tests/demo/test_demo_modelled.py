"""`gpuwatch demo` on a modelled device, run as a user runs it: files, exit codes, interruption, no orphan."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from gpuwatch.demo import run_demo
from tests.demo.run_cli import CLI, demo, scenario

FILES = ["postmortem.html", "postmortem.md", "run.capsule", "verdict.json"]


@pytest.fixture(scope="module")
def founding(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """The founding case, with --json."""
    out = tmp_path_factory.mktemp("founding") / "new" / "folder"
    return demo("batch_thrashing", "--device", "h100", "--seed", "1", "--json", "--out", str(out)), out


def test_json_is_all_that_stdout_carries(founding) -> None:
    """Exit 0 whatever the verdict; one object; progress on stderr says that time is virtual."""
    done, out = founding
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["schema"] == 1
    assert verdict == json.loads((out / "verdict.json").read_text())
    assert "running" in done.stderr


def test_it_leaves_four_files_and_no_other(founding) -> None:
    """Exactly one capsule, one verdict, two postmortems; no half-written part."""
    _, out = founding
    assert sorted(p.name for p in out.iterdir()) == FILES


def test_the_verdict_names_the_founding_case(founding) -> None:
    """batch_thrashing, set off by the longer prompts; the postmortem says the same."""
    done, out = founding
    first = json.loads(done.stdout)["incidents"][0]
    assert (first["rule"], first["trigger"]["kind"]) == ("batch_thrashing", "length_shift")
    page = (out / "postmortem.html").read_text()
    assert "Batch thrashing" in page
    assert "Virtual time" in page
    assert "# Batch thrashing" in (out / "postmortem.md").read_text()


def test_replay_gives_the_same_verdict(founding) -> None:
    """`gpuwatch replay` of the capsule, byte for byte."""
    done, out = founding
    again = subprocess.run(
        [*CLI, "replay", str(out / "run.capsule"), "--json"], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(again.stdout) == json.loads(done.stdout)


def test_plain_output_ends_with_the_verdict_and_the_paths(tmp_path: Path) -> None:
    """Into a pipe: plain lines, the verdict on one screen, where the files are; old files of a demo are replaced."""
    (tmp_path / "verdict.json").write_text("old")
    done = demo(str(scenario(tmp_path, 25)), "--device", "h100", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "No incident" in done.stdout
    assert done.stdout.rstrip().endswith(str(tmp_path / "run.capsule"))
    assert json.loads((tmp_path / "verdict.json").read_text())["incidents"] == []
    assert "No incident in this record" in (tmp_path / "postmortem.html").read_text()


BAD = {
    "no such scenario": (["nonsense"], "batch_thrashing"),
    "no such device": (["batch_thrashing", "--device", "abacus"], "h100"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_ends_with_what_would_be_right(case: str, tmp_path: Path) -> None:
    """Exit 2, the known names, and no file left behind."""
    arguments, hint = BAD[case]
    done = demo("--device", "h100", *arguments, "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert hint in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "out").glob("*"))


def test_a_bad_key_is_named_with_its_file(tmp_path: Path) -> None:
    """The engine's own words come through."""
    path = scenario(tmp_path, 20)
    path.write_text(path.read_text().replace("max_num_seqs", "max_num_seq"))
    done = demo(str(path), "--device", "h100", "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert "short.toml" in done.stderr
    assert "max_num_seq" in done.stderr


def test_an_out_folder_that_cannot_be_is_said(tmp_path: Path) -> None:
    """Exit 2 with the path."""
    (tmp_path / "file").write_text("")
    done = demo("batch_thrashing", "--device", "h100", "--out", str(tmp_path / "file"))
    assert done.returncode == 2
    assert str(tmp_path / "file") in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_writes_what_it_has(number: signal.Signals, tmp_path: Path) -> None:
    """Exit 130, all files, a capsule that replays, and no child left."""
    path = scenario(tmp_path, 500_000)
    process = subprocess.Popen(
        [*CLI, "demo", str(path), "--device", "h100", "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip().startswith("20 s"):
            break
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(number)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "No incident" in out
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == FILES
    assert not psutil.wait_procs(children, timeout=10)[1]
    replay = [*CLI, "replay", str(tmp_path / "out" / "run.capsule"), "--json"]
    again = subprocess.run(replay, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(again.stdout) == json.loads((tmp_path / "out" / "verdict.json").read_text())


def test_a_killed_demo_takes_its_engine_along(tmp_path: Path) -> None:
    """kill -9 of the demo: the engine does not outlive it."""
    process = subprocess.Popen(
        [*CLI, "demo", str(scenario(tmp_path, 500_000)), "--device", "h100", "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    next(line for line in process.stdout if "running" in line)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait(10)
    process.stdout.close()
    assert not psutil.wait_procs(children, timeout=10)[1]


def test_without_torch_it_says_what_to_install(monkeypatch, tmp_path: Path, capsys) -> None:
    """Exit 2 before anything starts, with the command, and with the way that works without."""
    monkeypatch.setattr("gpuwatch.demo.run.find_spec", lambda name: None if name == "torch" else object())
    assert run_demo("batch_thrashing", "torch", 1, tmp_path) == 2
    message = capsys.readouterr().err
    assert "gpuwatch[engine]" in message
    assert "--device h100" in message


def test_a_terminal_gets_a_panel(tmp_path: Path) -> None:
    """On a real pseudo-terminal: redrawn frames, block characters, virtual time named, then the verdict."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "72", "LINES": "30", "PYTHONIOENCODING": "utf-8"}
    process = subprocess.Popen(
        [*CLI, "demo", str(scenario(tmp_path, 60)), "--device", "h100", "--out", str(tmp_path / "out")],
        stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.PIPE, env=environment,
    )  # fmt: skip
    os.close(theirs)
    text = _read_all(ours)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert "\x1b[J" in text
    assert "virtual time" in text
    assert re.search("[▁▂▃▄▅▆▇█]", text)
    frames, verdict = text.rsplit("\x1b[J", 1)[0], text.rsplit("\x1b[J", 1)[1]
    assert all(len(re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", row)) <= 72 for row in frames.split("\r\n"))
    assert "No incident" in verdict


def _read_all(fd: int) -> str:
    """Everything until the other side has closed."""
    out = b""
    while select.select([fd], [], [], 30)[0]:
        try:
            block = os.read(fd, 65536)
        except OSError:  # EIO: the terminal is gone with its last writer
            break
        if not block:
            break
        out += block
    os.close(fd)
    return out.decode()
