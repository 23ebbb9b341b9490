"""The machine's readings are what its files say; this machine's own are within the catalogue's bounds."""

import math
import os
from types import SimpleNamespace

import psutil
import pytest

from gpuwatch.catalog import check_value
from gpuwatch.model import Subject
from gpuwatch.sources.host import HostSource, World
from gpuwatch.sources.host.disks import Disks, free_bytes
from gpuwatch.sources.host.machine import Machine
from gpuwatch.sources.host.network import Network
from gpuwatch.sources.host.pressure import stall_seconds
from tests.host.trees import PRESSURE, write

SNMP = "Ip: A B\nIp: 1 2\nTcp: RtoMin InSegs OutSegs RetransSegs\nTcp: 200 9 {sent} {again}\n"
DEV = (
    "Inter-|   Receive                                                |  Transmit\n face |bytes packets\n"
    "    lo: 999 1 0 9 0 0 0 0 999 1 0 9 0 0 0 0\n  eth0: {rx} 10 0 {dropped} 0 0 0 0 {tx} 10 0 0 0 0 0 0\n"
)


def test_segments_sent_again_bytes_and_drops(tmp_path):
    network = Network(tmp_path)
    for at, (sent, again, rx, tx, dropped) in enumerate([(100, 0, 0, 0, 0), (190, 10, 2000, 500, 3)]):
        write(tmp_path / "snmp", SNMP.format(sent=sent, again=again))
        write(tmp_path / "dev", DEV.format(rx=rx, tx=tx, dropped=dropped))
        values = network.read(2.0 * at)
    assert values == {
        "host_net_retransmit_ratio": 0.1,
        "host_net_rx_bytes_per_second": 1000,
        "host_net_tx_bytes_per_second": 250,
        "host_net_dropped_per_second": 1.5,
    }
    assert math.isnan(network.read(3.0)["host_net_retransmit_ratio"]), "nothing was sent"


def disk_line(name, numbers, reads=0, sectors=0, read_ms=0, busy_ms=0):
    return f" {numbers} {name} {reads} 0 {sectors} {read_ms} 0 0 0 0 0 {busy_ms} 0 0 0 0 0\n"


@pytest.fixture
def disks(tmp_path):
    for name in ("nvme0n1", "sdb"):
        (tmp_path / "sys" / "block" / name).mkdir(parents=True)

    def put(*lines):
        write(tmp_path / "proc" / "diskstats", "".join(lines))

    put(disk_line("nvme0n1", "259 0"), disk_line("nvme0n1p1", "259 1"), disk_line("sdb", "8 16"))
    return put, tmp_path


def test_whole_disks_count_once_and_the_busiest_is_told(disks):
    put, top = disks
    seen = Disks(top / "proc", top / "sys")
    assert seen.read(10.0) == {}
    put(
        disk_line("nvme0n1", "259 0", reads=100, sectors=2000, read_ms=500, busy_ms=900),
        disk_line("nvme0n1p1", "259 1", reads=100, sectors=2000, read_ms=500, busy_ms=900),
        disk_line("sdb", "8 16", reads=2, sectors=0, read_ms=80, busy_ms=80),
        disk_line("loop0", "7 0", busy_ms=1000),
    )
    values = seen.read(11.0)
    assert values["host_disk_busy_ratio"] == pytest.approx(0.9)
    assert values["host_disk_wait_seconds"] == pytest.approx(0.04)
    assert values["host_disk_bytes_per_second"] == 2000 * 512


def test_with_paths_only_the_disks_that_hold_them_count(disks):
    put, top = disks
    device = top.stat().st_dev
    numbers = f"{os.major(device)} {os.minor(device)}"
    seen = Disks(top / "proc", top / "sys", [str(top), "/nowhere/at/all"])
    put(disk_line("nvme0n1", "259 0"), disk_line("sdb", numbers))
    seen.read(0.0)
    put(disk_line("nvme0n1", "259 0", busy_ms=1000), disk_line("sdb", numbers, busy_ms=250))
    assert seen.read(1.0)["host_disk_busy_ratio"] == pytest.approx(0.25)


def test_stolen_cpu_runnable_tasks_pressure_and_kills(tmp_path):
    times = [psutil._pslinux.scputimes(*([0.0] * 10)), psutil._pslinux.scputimes(40, 0, 10, 20, 5, 0, 0, 25, 0, 0)]
    memory = SimpleNamespace(available=25, total=100)
    library = SimpleNamespace(
        cpu_count=lambda: 4, cpu_times=lambda: times.pop(0), virtual_memory=lambda: memory,
        getloadavg=lambda: (8.0, 0.0, 0.0), swap_memory=lambda: SimpleNamespace(used=7),
    )  # fmt: skip
    write(tmp_path / "loadavg", "8.00 1.00 1.00 13/812 99\n")
    machine = Machine(library, tmp_path, tmp_path / "net", Disks(tmp_path, tmp_path))
    machine.read(0.0)
    for kills in (4, 6):
        write(tmp_path / "vmstat", f"oom_kill {kills}\npgmajfault {kills * 10}\npswpin 0\npswpout {kills}\n")
        slow = machine.read_slow(kills / 2)
    write(tmp_path / "pressure" / "io", PRESSURE.format(some=0, full=0))
    values = machine.read(1.0)
    assert values["host_cpu_steal_ratio"] == 0.25
    assert values["host_cpu_ratio"] == 0.75
    assert values["host_cpu_iowait_ratio"] == 0.05
    assert (values["host_runnable_ratio"], values["host_load_ratio"]) == (3.0, 2.0)
    assert values["host_memory_used_ratio"] == 0.75
    assert machine.killed == 2
    assert slow["host_major_faults_per_second"] == 20
    assert slow["host_swap_bytes_per_second"] == 2 * 4096


def test_this_machine_is_read_within_the_catalogues_bounds(tmp_path):
    source = HostSource("here", world=World(state=tmp_path))
    source.look(1.0)
    sum(i * i for i in range(300_000))  # some CPU between the two looks
    frames = [*source.look(2.0).frames, *source.look(20.0).frames]
    read = {name: value for f in frames for name, value in zip(f.names, f.values[0], strict=True)}
    assert {"host_cpu_ratio", "host_memory_used_ratio", "host_load_ratio", "host_state_free_bytes"} <= read.keys()
    assert all(check_value(name, value) for name, value in read.items())
    assert {f.source for f in frames} == {"host", "host-slow"}
    assert "cgroup_cpu_throttled_ratio" not in read, "the agent's own container is nobody's evidence"
    assert frames[0].subject == Subject(host="here")


def test_free_room_where_there_is_no_folder_is_unknown(tmp_path):
    assert free_bytes(tmp_path) > 0
    assert math.isnan(free_bytes(tmp_path / "nowhere"))


@pytest.mark.parametrize("text", ["", "some", "some total=x", "some avg10=0 total=-3", "full\0total=1", "total=7"])
def test_pressure_of_another_form_is_left_out(text):
    assert stall_seconds(text) == {}
