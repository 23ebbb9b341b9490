"""The host source against this machine, and cgroup throttling against files as the kernel writes them."""

import asyncio
import os
import subprocess
import sys

import pytest

from gpuwatch.catalog import check_value
from gpuwatch.model import Subject
from gpuwatch.sources.cgroup import CpuThrottling
from gpuwatch.sources.host import HostSource
from tests.sources.stub_server import HandClock

ENGINE = Subject(engine="e")


def readings(batch, subject):
    return {n: v for f in batch.frames if f.subject == subject for n, v in zip(f.names, f.values[0], strict=True)}


def test_this_host_is_read_within_the_catalogues_bounds():
    source = HostSource("here", HandClock())
    source.look(1.0)
    sum(i * i for i in range(300_000))  # some CPU between the two looks
    read = readings(asyncio.run(source.poll(2.0)), Subject(host="here"))
    assert {"host_cpu_ratio", "host_memory_used_ratio", "host_load_ratio"} <= read.keys()
    assert all(check_value(name, value) for name, value in read.items())


BUSY = """
import sys
sys.stdin.readline()
x = sum(i * i for i in range(3_000_000))
print("done", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def busy():
    """A process that computes when it is told to, and says when it is done."""
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def test_an_engines_process_is_read_by_its_pid(busy):
    source = HostSource("here", HandClock(), ENGINE, busy.pid)
    first = readings(source.look(10.0), ENGINE)
    assert first["process_memory_bytes"] > 1_000_000
    assert first["process_start_seconds"] > 1e9
    busy.stdin.write("\n")
    busy.stdin.flush()
    assert busy.stdout.readline() == "done\n"
    second = readings(source.look(11.0), ENGINE)
    assert second["process_cpu_ratio"] > 0.02


def test_a_process_that_has_gone_is_missing_and_not_zero(busy):
    source = HostSource("here", HandClock(), ENGINE, busy.pid)
    source.look(10.0)
    busy.kill()
    busy.wait()
    batch = source.look(11.0)
    assert readings(batch, ENGINE) == {}
    assert readings(batch, Subject(host="here"))
    source.watch(os.getpid())
    assert readings(source.look(12.0), ENGINE)["process_memory_bytes"] > 0


def cpu_stat(root, name, text):
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize("name", ["sys/fs/cgroup/cpu.stat", "sys/fs/cgroup/cpu,cpuacct/cpu.stat"], ids=["v2", "v1"])
def test_throttling_is_the_share_of_periods_between_two_looks(tmp_path, name):
    throttling = CpuThrottling(tmp_path)
    seen = []
    for periods, throttled in ((100, 10), (200, 60), (200, 60), (50, 0)):
        cpu_stat(tmp_path, name, f"usage_usec 5\nnr_periods {periods}\nnr_throttled {throttled}\n")
        seen.append(throttling.ratio())
    assert seen[1] == 0.5
    assert all(value != value for value in (seen[0], seen[2], seen[3]))


def test_a_cgroup_without_a_limit_or_out_of_reach_is_unknown(tmp_path):
    throttling = CpuThrottling(tmp_path)
    assert throttling.ratio() != throttling.ratio()
    cpu_stat(tmp_path, "sys/fs/cgroup/cpu.stat", "usage_usec 5\n")
    assert [throttling.ratio() == throttling.ratio() for _ in range(2)] == [False, False]
