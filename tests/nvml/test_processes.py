"""Who is on a device: host pids, memory, shares of the SMs; and who they are, by /proc."""

import math

from gpuwatch.sources.gpu.nvml.processes import MOST, Owner, owner
from tests.nvml.looking import facts, readings
from tests.nvml.scripted import GIB, Code, hopper


def listed(looker, gpu="GPU-a"):
    return {p.pid: p for p in looker.source.owners()[gpu]}


def test_processes_are_listed_with_their_memory(install):
    gpu = hopper()
    gpu.processes = [(41, 70 * GIB), (42, None)]
    _, looker = install(gpu)
    assert readings(looker.look())["gpu_processes"] == 2
    found = listed(looker)
    assert found[41].memory_bytes == 70 * GIB
    assert math.isnan(found[42].memory_bytes)  # the driver does not say, which is not zero


def test_no_process_is_known_to_be_none(install):
    gpu = hopper()
    gpu.processes = []
    _, looker = install(gpu)
    assert readings(looker.look())["gpu_processes"] == 0
    assert looker.source.owners() == {"GPU-a": ()}


def test_shares_are_means_of_the_samples_since_the_last_list(install):
    gpu = hopper()
    gpu.processes = [(41, GIB), (42, GIB)]
    gpu.utilisation = [(41, 100, 80), (41, 200, 60), (42, 150, 20)]
    _, looker = install(gpu)
    looker.look()
    assert {pid: round(p.sm_ratio, 6) for pid, p in listed(looker).items()} == {41: 0.7, 42: 0.2}
    gpu.utilisation.append((42, 300, 90))
    looker.look(20)
    found = listed(looker)
    assert math.isnan(found[41].sm_ratio)
    assert found[42].sm_ratio == 0.9


def test_an_error_that_says_success_means_no_new_samples(install):
    """The binding raises an error with the value 0 for an empty list; it is no failure, and it is asked again."""
    gpu = hopper()
    gpu.utilisation = []
    _nvml, looker = install(gpu)
    said = looker.look()
    assert readings(said)["gpu_processes"] == 1
    assert math.isnan(listed(looker)[4242].sm_ratio)
    assert "nvmlDeviceGetProcessUtilization" not in facts(said).get("not_supported", "")
    gpu.utilisation = [(4242, 5, 50)]
    looker.look(20)
    assert listed(looker)[4242].sm_ratio == 0.5


def test_not_found_means_no_new_samples(install):
    gpu = hopper()
    gpu.utilisation = Code(6)
    nvml, looker = install(gpu)
    looker.look()
    looker.look(20)
    assert nvml.calls["nvmlDeviceGetProcessUtilization"] == 2


def test_a_long_list_is_cut(install):
    gpu = hopper()
    gpu.processes = [(pid, GIB) for pid in range(1, 1001)]
    _, looker = install(gpu)
    looker.look()
    assert len(looker.source.owners()["GPU-a"]) == MOST


def test_a_lost_device_has_no_owners(install):
    one, two = hopper("GPU-a"), hopper("GPU-b")
    _, looker = install(one, two)
    looker.look()
    one.lost = 15
    looker.look()
    assert set(looker.source.owners()) == {"GPU-b"}


def test_an_owner_is_read_from_proc_without_arguments(tmp_path):
    container = "0123456789abcdef" * 4
    (tmp_path / "41").mkdir()
    (tmp_path / "41" / "comm").write_text("VLLM::EngineCor\n")
    (tmp_path / "41" / "cgroup").write_text(
        f"0::/kubepods.slice/kubepods-pod11111111_2222_3333_4444_555555555555.slice/cri-containerd-{container}.scope\n"
    )
    assert owner(41, tmp_path) == Owner(41, "VLLM::EngineCor", container, "11111111-2222-3333-4444-555555555555")


def test_an_owner_that_cannot_be_seen_is_only_a_number(tmp_path):
    """A pid of the host is not in this namespace, or has ended."""
    assert owner(41, tmp_path) == Owner(41)
