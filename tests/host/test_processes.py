"""The engine's processes: who belongs to it, and what they do, from scripted files and from real processes."""

import math
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.catalog import check_value
from gpuwatch.sources.host.family import Family
from gpuwatch.sources.host.process_facts import process_facts
from gpuwatch.sources.host.process_files import stat
from gpuwatch.sources.host.processes import Processes
from gpuwatch.sources.host.slope import Slope
from tests.host.trees import process, write

TICKS = os.sysconf("SC_CLK_TCK")


def family_of(proc, pid):
    found = Family(pid, proc)
    found.walk()
    return found


def program(proc, pid, path="/usr/bin/python3"):
    (proc / str(pid) / "exe").symlink_to(path)


@pytest.fixture
def engine(tmp_path):
    """A shell, an API server (10) with its engine core (11) and two workers, an agent beside it, and a stranger."""
    process(tmp_path, 5, name="bash", parent=1, session=5)
    program_of = {10: "VLLM::APIServer", 11: "VLLM::EngineCor", 12: "VLLM::Worker_TP", 13: "VLLM::Worker_TP"}
    for pid, name in program_of.items():
        process(tmp_path, pid, name=name, parent={10: 5, 11: 10}.get(pid, 11), session=5)
        program(tmp_path, pid)
    program(tmp_path, 5, "/bin/bash")
    process(tmp_path, 90, name="gpuwatch", parent=5, session=5)
    program(tmp_path, 90)
    process(tmp_path, 91, name="stranger", parent=1, session=91)
    (tmp_path / "self").symlink_to("90")
    write(tmp_path / "stat", "cpu 1 2 3 4\nbtime 1700000000\n")
    return tmp_path


@pytest.mark.parametrize("named", [10, 11, 13])
def test_whichever_process_is_named_the_whole_engine_is_found(engine, named):
    """A ring or a port names one of them; the shell that started it runs another program and stays out."""
    found = family_of(engine, named)
    assert sorted(found.members) == [10, 11, 12, 13]
    assert (found.first, found.fronts) == (10, (10,))
    assert found.started_at() == 1700000000 + 5000 / TICKS


def test_the_agent_is_never_an_engine(engine):
    with pytest.raises(OSError, match="no process 90"):
        family_of(engine, 90)
    process(engine, 5, name="python", parent=1, session=5)  # both started by one supervisor
    (engine / "5" / "exe").unlink()
    program(engine, 5)
    assert 90 not in family_of(engine, 10).members


def test_a_process_named_like_numbers_and_brackets_is_read(tmp_path):
    folder = process(tmp_path, 3, name="a) R 1 (b 9", user=4 * TICKS)
    assert (stat(folder).name, stat(folder).parent, stat(folder).user_s) == ("a) R 1 (b 9", 1, 4.0)


@given(st.text(max_size=60))
def test_any_line_is_a_process_or_refused(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("p")
    (folder / "stat").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ValueError, match="not a process"):
        stat(folder)


def test_rates_are_per_process_and_one_that_joins_makes_no_jump(engine):
    seen = Processes(family_of(engine, 10), engine)
    seen.read(100.0)
    process(engine, 10, name="VLLM::APIServer", parent=5, session=5, user=90, system=10, threads=1)
    process(engine, 12, name="VLLM::Worker_TP", parent=11, session=5, user=20, system=180, threads=1)
    process(engine, 14, name="late", parent=11, session=5, user=10**6)
    program(engine, 14)
    values = seen.read(101.0)
    scale = 100 / TICKS
    assert values["process_cpu_ratio"] == pytest.approx(2.0 * scale)
    assert values["process_cpu_all_ratio"] == pytest.approx(3.0 * scale)
    assert values["process_cpu_system_ratio"] == pytest.approx(190 / 300)
    assert values["process_front_cpu_ratio"] == pytest.approx(1.0 * scale)
    seen.family.walk()
    assert 14 in seen.family.members
    assert seen.read(102.0)["process_cpu_ratio"] == pytest.approx(0.0)


def test_a_pid_that_is_given_out_again_is_another_process(engine):
    seen = Processes(family_of(engine, 10), engine)
    seen.read(1.0)
    process(engine, 12, name="cron", parent=1, session=1, start=9999, user=10**6)
    assert seen.read(2.0)["process_cpu_ratio"] == 0.0
    assert 12 not in seen.family.members


def test_waits_switches_and_faults_of_main_threads(engine):
    seen = Processes(family_of(engine, 10), engine)
    for at, (waited_ns, voluntary, involuntary, faults) in enumerate([(0, 0, 0, 0), (800_000_000, 40, 300, 7)]):
        process(engine, 11, name="VLLM::EngineCor", parent=10, session=5, faults=faults)
        write(engine / "11" / "schedstat", f"123 {waited_ns} 5\n")
        text = f"voluntary_ctxt_switches:\t{voluntary}\nnonvoluntary_ctxt_switches:\t{involuntary}\n"
        write(engine / "11" / "status", text)
        values = seen.read(float(at))
    assert values["process_run_wait_ratio"] == 0.8
    assert values["process_switches_voluntary_per_second"] == 40
    assert values["process_switches_involuntary_per_second"] == 300
    assert values["process_major_faults_per_second"] == 7


def test_the_busiest_thread_and_descriptors_near_their_limit(engine):
    seen = Processes(family_of(engine, 10), engine)
    for number in range(9):
        write(engine / "10" / "fd" / str(number), "")
    write(engine / "10" / "limits", "Limit   Soft Hard Units\nMax open files            10      20      files\n")
    seen.read_slow(0.0)
    for thread, used in ((10, 1), (77, 9)):
        text = (engine / "10" / "task" / "10" / "stat").read_text().split()
        text[13] = str(used * TICKS)
        write(engine / "10" / "task" / str(thread) / "stat", " ".join(text))
    seen.read_slow(5.0)
    text[13] = str(14 * TICKS)
    write(engine / "10" / "task" / "77" / "stat", " ".join(text))
    values = seen.read_slow(10.0)
    assert values["process_thread_cpu_ratio"] == 1.0
    assert (values["process_open_files"], values["process_open_files_ratio"]) == (9, 0.9)


def test_threads_against_the_quota_and_nothing_else_of_the_environment(engine):
    """Torch takes the node's 172 CPUs where the container may use 6."""
    process(engine, 10, name="VLLM::APIServer", parent=5, session=5)
    found = process_facts(family_of(engine, 10), engine, 6.0)
    assert found["threads_over_quota"] == "172 of 6"
    write(engine / "10" / "environ", "HF_TOKEN=hf_secretsecret\0OMP_NUM_THREADS=4\0MKL_NUM_THREADS=sk-x\0PATH=/bin\0")
    found = process_facts(family_of(engine, 10), engine, 6.0)
    assert "threads_over_quota" not in found
    assert found == {"env_omp_num_threads": "4", "processes": "4", "cpus_allowed": "172", "cpu_quota": "6"}
    assert process_facts(family_of(engine, 10), engine, math.inf)["cpu_quota"] == "none"
    assert "cpu_quota" not in process_facts(family_of(engine, 10), engine, math.nan)


def test_memory_grows_at_the_rate_of_the_line_through_it_and_is_unknown_at_first():
    slope = Slope()
    told = [slope.add(1e9 + 90.0 * at, float(at)) for at in range(0, 4000, 10)]
    assert all(math.isnan(value) for value in told[:60])
    assert told[-1] == pytest.approx(90.0)
    slope.clear()
    assert math.isnan(slope.add(5.0, 5000.0))


BUSY = """
import sys, threading
for _ in range(3):
    threading.Thread(target=sys.stdin.readline, daemon=True).start()
end = sum(i * i for i in range(3_000_000))
print("done", flush=True)
sys.stdin.readline()
"""


def test_a_real_process_is_read_within_the_catalogues_bounds(tmp_path):
    from pathlib import Path

    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        proc = Path("/proc")
        seen = Processes(family_of(proc, child.pid), proc)
        first = seen.read(10.0) | seen.read_slow(10.0)
        assert child.stdout.readline() == b"done\n"
        second = seen.read(11.0) | seen.read_slow(11.0)
        child.kill()
        child.wait()
        assert seen.read(12.0) == {}
    assert first["process_memory_bytes"] > 1_000_000
    assert second["process_threads"] == 4
    assert second["process_front_cpu_ratio"] > 0.02
    assert all(check_value(name, value) for name, value in second.items())
