"""A board cut into instances: each is a subject of its own, holes are skipped, board values stay with the board."""

import pytest

from tests.nvml.looking import events, facts, readings
from tests.nvml.scripted import GIB, Code, Scripted, hopper


def part(number: int, uuid: str, **more) -> Scripted:
    return Scripted(
        uuid,
        answers={
            "nvmlDeviceGetMemoryInfo_v2": (10 * GIB, 0, 4 * GIB, 6 * GIB),
            "nvmlDeviceGetName": "H100 MIG 1g.10gb",
        },
        gpm={1: 50.0, 2: 40.0, 3: 12.0, 10: 30.0},
        instance=number,
        processes=[(1000 + number, None)],
        **more,
    )


def cut(**parts) -> Scripted:
    """A board with instances 7 and 9 at the indexes 0 and 3; utilisation is not supported once it is cut."""
    board = hopper(mig={0: part(7, "MIG-7"), 3: part(9, "MIG-9")} | parts.pop("mig", {}))
    board.answers |= {"nvmlDeviceGetMigMode": (1, 1), "nvmlDeviceGetUtilizationRates": Code(3)}
    return board


def test_instances_are_subjects_and_holes_are_skipped(install):
    _, looker = install(cut())
    looker.look()
    said = looker.look()
    assert {frame.subject.gpu for frame in said.frames} == {"GPU-a", "GPU-a/7", "GPU-a/9"}
    values = readings(said, "GPU-a/9")
    assert values["gpu_memory_used_bytes"] == 6 * GIB
    assert values["gpu_sm_active_ratio"] == pytest.approx(0.4)
    assert "gpu_dram_bytes_per_second" not in values  # a share of what? the board's peak is not the instance's


def test_board_values_are_told_once_by_the_board(install):
    """Power repeated on every instance would be summed by somebody."""
    _, looker = install(cut())
    said = looker.look()
    assert readings(said)["gpu_power_watts"] == 572
    assert "gpu_util_ratio" not in readings(said)
    assert not {"gpu_power_watts", "gpu_temperature_celsius", "gpu_throttled_ratio"} & set(readings(said, "GPU-a/7"))


def test_an_instance_says_which_board_and_which_mig_device_it_is(install):
    _, looker = install(cut())
    said = looker.look()
    assert facts(said)["mig"] == "on"
    told = facts(said, "GPU-a/7")
    assert (told["mig_uuid"], told["board"], told["model"]) == ("MIG-7", "GPU-a", "H100 MIG 1g.10gb")


def test_instances_are_sampled_through_their_board(install):
    nvml, looker = install(cut())
    looker.look()
    looker.look()
    assert nvml.calls["nvmlGpmMigSampleGet"] == 4


def test_without_the_call_for_instances_their_own_handles_are_sampled(install):
    nvml, looker = install(cut())
    nvml.missing.add("nvmlGpmMigSampleGet")
    looker.look()
    assert looker.values(gpu="GPU-a/7")["gpu_sm_active_ratio"] == pytest.approx(0.4)


def test_two_compute_instances_of_one_gpu_instance_are_one_subject(install):
    _, looker = install(cut(mig={4: part(9, "MIG-9b")}))
    assert facts(looker.look(), "GPU-a/9")["mig_uuid"] == "MIG-9, MIG-9b"


def test_processes_belong_to_the_instances(install):
    _, looker = install(cut())
    looker.look()
    owners = looker.source.owners()
    assert {gpu: [p.pid for p in listed] for gpu, listed in owners.items()} == {"GPU-a/7": [1007], "GPU-a/9": [1009]}


def test_a_destroyed_instance_is_no_more_and_the_board_goes_on(install):
    board = cut()
    _, looker = install(board)
    looker.look()
    gone = board.mig[3]
    board.mig[3] = part(11, "MIG-11")
    said = [looker.look(), looker.look(), looker.look()]
    assert gone.address  # alive until here, or its address would be another's
    changes = [event for s in said for event in s.events]
    assert [(e.subject.gpu, e.what, e.detail["mig_instances"]) for e in changes] == [
        ("GPU-a", "change", "7, 9 → 7, 11")
    ]
    assert {frame.subject.gpu for frame in said[-1].frames} == {"GPU-a", "GPU-a/7", "GPU-a/11"}
    assert "GPU-a/9" not in looker.source.owners()


def test_a_board_that_is_cut_while_we_watch_is_asked_anew(install):
    """Utilisation ends, instances appear; what the whole board refused is asked again when it is whole again."""
    board = hopper()
    _, looker = install(board)
    assert readings(looker.look())["gpu_util_ratio"] == 0.97
    board.mig = {0: part(7, "MIG-7")}
    board.answers |= {"nvmlDeviceGetMigMode": (1, 1), "nvmlDeviceGetUtilizationRates": Code(3)}
    heard = [event for _ in range(61) for event in events(looker.look())]
    assert heard == [("gpu/GPU-a", "change")]
    assert looker.values(gpu="GPU-a/7")["gpu_memory_used_bytes"] == 6 * GIB
    board.mig = None
    board.answers |= {"nvmlDeviceGetMigMode": (0, 0), "nvmlDeviceGetUtilizationRates": (50, 10)}
    for _ in range(61):
        said = looker.look()
    assert readings(said)["gpu_util_ratio"] == 0.5
    assert {frame.subject.gpu for frame in said.frames} == {"GPU-a"}


def test_a_lost_board_takes_its_instances_along(install):
    board = cut()
    _, looker = install(board)
    looker.look()
    board.lost = 15
    for instance in board.mig.values():
        instance.lost = 15
    said = looker.look()
    assert events(said) == [("gpu/GPU-a", "gpu_lost")]
    assert {frame.subject.gpu for frame in said.frames} == {"GPU-a"}
