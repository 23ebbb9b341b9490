"""An engine's process and container as one source: found, lost, found again, or unseen with a reason and a cure."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwatch.config import Config, EngineTarget, Machine, parse
from gpuwatch.model import Subject
from gpuwatch.sources.gpu.ownership.clues import Pid
from gpuwatch.sources.host import EngineHostSource, World
from gpuwatch.sources.host.build import engine_processes, host_sources
from gpuwatch.sources.host.engine_process import EngineProcess
from tests.host.trees import process, version_2, write

ENGINE = Subject(engine="e")
REPOSITORY = Path(__file__).parents[2]


def readings(batch, source=None):
    frames = [f for f in batch.frames if source in (None, f.source)]
    return {n: v for f in frames for n, v in zip(f.names, f.values[0], strict=True)}


def scripted(tmp_path, pid=lambda: 42):
    tree, folder = version_2(tmp_path)
    write(tree.proc / "stat", "btime 1700000000\n")
    write(folder / "cpu.max", "200000 100000\n")
    write(folder / "cpu.stat", "usage_usec 0\nnr_periods 0\nnr_throttled 0\n")
    write(folder / "memory.events", "oom_kill 0\n")
    return tree, folder, EngineHostSource("here", ENGINE, pid, world=World(proc=tree.proc))


def test_process_and_container_are_read_together_and_told_apart_by_cadence(tmp_path):
    _, folder, source = scripted(tmp_path)
    first = asyncio.run(source.poll(10.0))
    assert first.info[0].labels["cpu_quota"] == "2"
    assert first.info[0].labels["threads_over_quota"] == "172 of 2"
    assert readings(first, "host-slow")["cgroup_cpu_limit_ratio"] == 2.0
    write(folder / "cpu.stat", "usage_usec 1500000\nnr_periods 10\nnr_throttled 4\n")
    second = source.look(11.0)
    assert [frame.source for frame in second.frames] == ["host"]
    assert readings(second)["cgroup_cpu_throttled_ratio"] == 0.4
    assert readings(second)["cgroup_cpu_ratio"] == 1.5
    assert second.info == ()
    assert source.unseen == ()


def test_a_kill_for_memory_is_an_event_of_the_engine(tmp_path):
    _, folder, source = scripted(tmp_path)
    source.look(10.0)
    write(folder / "memory.events", "oom_kill 2\n")
    (event,) = source.look(11.0).events
    assert (event.subject, event.what, event.detail) == (ENGINE, "oom_kill", {"count": "2"})


def test_an_engine_that_has_gone_is_missing_and_its_successor_is_followed(tmp_path):
    pid = 42
    tree, _, source = scripted(tmp_path, lambda: pid)
    source.look(10.0)
    for name in ("stat", "task/42/stat"):
        (tree.proc / "42" / name).unlink()
    assert readings(source.look(11.0)) == {}
    source.look(12.0)
    assert "process 42: not there" in source.absent
    pid = 43
    process(tree.proc, 43, pages=7)
    batch = source.look(30.0)
    assert readings(batch)["process_memory_bytes"] == 7 * os.sysconf("SC_PAGE_SIZE")
    assert [str(missing) for missing in source.unseen] == ["the engine's container: /proc/43/cgroup: not there"]
    assert not any(name.startswith("cgroup_") for name in readings(batch)), "the old container is not the new one's"


def test_without_a_process_nothing_is_told_and_the_cure_is(tmp_path):
    source = EngineHostSource("here", ENGINE, lambda: 0, world=World(proc=tmp_path))
    assert source.look(1.0).frames == ()
    (missing,) = source.unseen
    assert missing.why == "its process is not known"
    assert "shareProcessNamespace" in missing.cure
    assert "[[engines]] pid" in missing.cure


LOOK = """
import json, os, sys
from gpuwatch.model import Subject
from gpuwatch.sources.host import EngineHostSource
source = EngineHostSource("here", Subject(engine="e"), lambda: int(sys.argv[1]))
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
source.look(1.0)
names = [name for frame in source.look(2.0).frames for name in frame.names]
print(json.dumps({"unseen": {m.what: [m.why, m.cure] for m in source.unseen}, "names": names}))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_users_engine_shows_what_the_kernel_allows_and_says_what_it_does_not():
    """A real look without rights: CPU and memory are everybody's, root folder and descriptors are not."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.readline()"], stdin=subprocess.PIPE) as engine:
        done = subprocess.run(
            [sys.executable, "-c", LOOK, str(engine.pid)], cwd=REPOSITORY, capture_output=True, text=True, check=True
        )
        engine.communicate(b"\n")
    seen = json.loads(done.stdout)
    assert "process_memory_bytes" in seen["names"]
    assert not any(name.startswith("cgroup_") for name in seen["names"])
    why, cure = seen["unseen"]["the engine's container"]
    assert "permission denied" in why
    assert "SYS_PTRACE" in cure
    assert seen["unseen"]["the engine's open files"][0].endswith("permission denied")


SERVE = """
import socket, sys
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
sys.stdin.readline()
"""


def test_an_engine_that_nobody_named_is_found_by_its_port_and_remembered():
    with subprocess.Popen(
        [sys.executable, "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as engine:
        port = int(engine.stdout.readline())
        finds = EngineProcess(EngineTarget(url=f"http://127.0.0.1:{port}", name="e"), Pid)
        assert finds.pid == 0
        assert finds() == finds() == finds.pid == engine.pid
        elsewhere = EngineProcess(EngineTarget(url=f"http://10.9.8.7:{port}", name="e"), Pid)
        assert elsewhere() == 0, "a port of another machine is not this one's"
        engine.communicate("\n")
    assert finds() == 0


def test_sources_follow_the_configuration():
    config = parse(
        {"engines": [{"url": "http://localhost:8000", "name": "e", "pid": 5}], "machine": {"proc": "/host/proc"}}
    )
    processes = engine_processes(config, {})
    assert [source.name for source in host_sources(config, processes, "h")] == ["host:h", "host:h/e"]
    assert processes[ENGINE].pid == 5
    assert config.machine == Machine(proc="/host/proc")
    assert host_sources(parse({"host": False}), {}, "h") == []
    alone = parse({"engines": [{"url": "http://localhost:8000"}], "role": "engine"})
    assert engine_processes(alone, {}) == {}, "the role without privileges looks into no other container"
    assert Config().machine.cgroup_root == ""


def test_an_engine_that_comes_late_is_looked_for_soon_and_then_less_often(tmp_path):
    asked = []
    source = EngineHostSource("here", ENGINE, lambda: asked.append(1) or 0, world=World(proc=tmp_path))
    seen = []
    for second in range(40):
        source.look(float(second))
        seen.append(len(asked))
    assert seen[:4] == [1, 2, 2, 3]
    assert seen[-1] <= 8


def test_the_doctor_names_what_is_not_seen_and_the_cure(tmp_path):
    from gpuwatch.doctor.machine import lines, look_at

    _, _, seen = scripted(tmp_path)
    blind = EngineHostSource("here", Subject(engine="far"), lambda: 0, world=World(proc=tmp_path))
    for source in (seen, blind):
        source.look(1.0)
    look = look_at([seen, blind])
    assert look.seen == ["engine/e/0"]
    told = "\n".join(lines(look))
    assert "ok  engine/e/0" in told
    assert "engine/far/0: the engine's processes cannot be seen: its process is not known" in told
    assert "shareProcessNamespace: true" in told
    assert lines(look_at([])) == []
