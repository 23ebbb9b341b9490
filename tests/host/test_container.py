"""The container's readings are what its files say, in both versions, across restarts and limits above it."""

import math

import pytest

from gpuwatch.sources.host.container import Container
from gpuwatch.sources.host.place import find_place
from tests.host.trees import PRESSURE, version_1, version_2, write


def container(tree):
    found = Container(find_place(tree.pid, tree.proc))
    found.read_slow()
    return found


def stat_2(folder, periods, throttled, held_us, used_us=0):
    text = f"usage_usec {used_us}\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec {held_us}\n"
    write(folder / "cpu.stat", text)


def test_throttling_and_use_of_version_2(tmp_path):
    tree, folder = version_2(tmp_path)
    write(folder / "cpu.max", "600000 100000\n")
    stat_2(folder, 100, 10, 0)
    seen = container(tree)
    assert seen.cores == 6.0
    first = seen.read(10.0)
    assert math.isnan(first["cgroup_cpu_throttled_ratio"])
    stat_2(folder, 110, 15, 3_000_000, 12_000_000)
    second = seen.read(12.0)
    assert second["cgroup_cpu_throttled_ratio"] == 0.5
    assert second["cgroup_cpu_held_ratio"] == 1.5
    assert second["cgroup_cpu_ratio"] == 6.0
    assert seen.read_slow()["cgroup_cpu_limit_ratio"] == 6.0


def test_version_1_counts_in_nanoseconds(tmp_path):
    tree, cpu, memory = version_1(tmp_path)
    for name, text in {"cpu.cfs_quota_us": "200000", "cpu.cfs_period_us": "100000", "cpuacct.usage": "0"}.items():
        write(cpu / name, text)
    write(cpu / "cpu.stat", "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n")
    write(memory / "memory.usage_in_bytes", "1000\n")
    write(memory / "memory.limit_in_bytes", "9223372036854771712\n")
    write(memory / "memory.stat", "cache 400\nrss 600\ntotal_cache 400\ntotal_rss 600\n")
    seen = container(tree)
    seen.read(1.0)
    write(cpu / "cpu.stat", "nr_periods 10\nnr_throttled 10\nthrottled_time 500000000\n")
    write(cpu / "cpuacct.usage", "2000000000")
    values = seen.read(2.0) | seen.read_slow()
    assert values["cgroup_cpu_throttled_ratio"] == 1.0
    assert values["cgroup_cpu_held_ratio"] == 0.5
    assert values["cgroup_cpu_ratio"] == 2.0
    assert values["cgroup_memory_bytes"] == 1000
    assert values["cgroup_memory_anon_bytes"] == 600
    assert "cgroup_memory_limit_bytes" not in values


def test_a_counter_that_falls_is_unknown_once_and_never_negative(tmp_path):
    """A container that is started again under the same path begins at zero."""
    tree, folder = version_2(tmp_path)
    write(folder / "cpu.max", "100000 100000\n")
    seen = container(tree)
    shares = []
    for at, (periods, throttled) in enumerate([(100, 50), (200, 100), (5, 0), (15, 5)]):
        stat_2(folder, periods, throttled, throttled * 1000, periods * 1000)
        values = seen.read(float(at))
        shares.append((values["cgroup_cpu_throttled_ratio"], values["cgroup_cpu_ratio"]))
    assert shares[1][0] == 0.5
    assert math.isnan(shares[2][0])
    assert math.isnan(shares[2][1])
    assert shares[3][0] == 0.5


def test_without_a_quota_nothing_is_held_back_and_without_a_look_nothing_is_known(tmp_path):
    tree, folder = version_2(tmp_path)
    unknown = container(tree).read(1.0)
    assert "cgroup_cpu_throttled_ratio" not in unknown
    write(folder / "cpu.max", "max 100000\n")
    seen = container(tree)
    assert seen.read(1.0)["cgroup_cpu_throttled_ratio"] == 0.0
    assert seen.cores == math.inf


def test_the_tightest_limit_counts_wherever_it_sits(tmp_path):
    tree, folder = version_2(tmp_path, "/slice/engine")
    above = folder.parent
    write(folder / "cpu.max", "max 100000\n")
    write(above / "cpu.max", "400000 100000\n")
    write(folder / "memory.max", "max\n")
    write(above / "memory.max", "2000\n")
    write(above / "memory.current", "1500\n")
    write(folder / "memory.current", "700\n")
    stat_2(above, 10, 0, 0)
    seen = container(tree)
    limits = seen.read_slow()
    assert (limits["cgroup_cpu_limit_ratio"], limits["cgroup_memory_limit_bytes"]) == (4.0, 2000)
    stat_2(above, 20, 10, 0)
    seen.read(1.0)
    stat_2(above, 30, 20, 0)
    assert seen.read(2.0)["cgroup_cpu_throttled_ratio"] == 1.0
    assert seen.read(3.0)["cgroup_memory_bytes"] == 1500, "what counts against the limit"


@pytest.mark.parametrize("version", [1, 2])
def test_kills_for_memory_are_counted_from_the_second_look_on(tmp_path, version):
    if version == 2:
        tree, folder = version_2(tmp_path)
        file, text = folder / "memory.events", "low 0\nhigh 7\nmax 3\noom 1\noom_kill {}\n"
    else:
        tree, _, folder = version_1(tmp_path)
        file, text = folder / "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
    write(file, text.format(3))
    seen = container(tree)
    killed = [seen.killed()]
    for count in (3, 5, 5, 0, 1):
        write(file, text.format(count))
        killed.append(seen.killed())
    assert killed == [0, 0, 2, 0, 0, 1]
    if version == 2:
        assert seen.read(1.0)["cgroup_memory_high_total"] == 7


def test_a_kill_shows_in_the_pod_when_the_container_has_gone_with_it(tmp_path):
    tree, folder = version_2(tmp_path, "/kubepods-pod0a1b2c3d_4e5f.slice/abc.scope")
    pod = folder.parent
    write(pod / "memory.events", "oom_kill 0\n")
    seen = container(tree)
    assert seen.killed() == 0
    for file in sorted(folder.iterdir()):
        file.unlink()
    folder.rmdir()
    write(pod / "memory.events", "oom_kill 1\n")
    assert not seen.is_there
    assert seen.killed() == 1


def test_pressure_is_the_growth_of_the_total_over_time(tmp_path):
    tree, folder = version_2(tmp_path)
    seen = container(tree)
    for some, full in ((1_000_000, 0), (1_500_000, 250_000)):
        write(folder / "memory.pressure", PRESSURE.format(some=some, full=full))
        values = seen.read(some / 1e6 * 2)
    assert values["cgroup_memory_pressure_ratio"] == 0.5
    assert values["cgroup_memory_stalled_ratio"] == 0.25
    assert "cgroup_io_pressure_ratio" not in values


@pytest.mark.parametrize("text", ["", "nonsense", "nr_periods x\nnr_throttled -1\n", "\xff\xfe", "9" * 4000])
def test_unreadable_files_are_unknown_and_no_crash(tmp_path, text):
    tree, folder = version_2(tmp_path)
    for name in ("cpu.stat", "cpu.max", "memory.max", "memory.current", "memory.events", "cpu.pressure", "memory.stat"):
        write(folder / name, text)
    seen = container(tree)
    values = seen.read(1.0) | seen.read_slow()
    assert all(math.isnan(value) for value in values.values())
    assert seen.killed() == 0
