"""NVIDIA_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES as CUDA and the container runtime mean them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.sources.gpu.ownership.inventory import Inventory
from gpuwatch.sources.gpu.ownership.visible import Visible, devices, read
from tests.ownership.proc_tree import ProcTree, kubepods

GPUS = [f"GPU-{letter * 8}-1111-4abc-9def-0123456789ab" for letter in "abcd"]
FOUR = Inventory({uuid: {"index": str(n), "model": "H100"} for n, uuid in enumerate(GPUS)})
ONE = Inventory({GPUS[0]: {"index": "0"}})
MIXED = Inventory({GPUS[0]: {"index": "0", "model": "A10"}, GPUS[1]: {"index": "1", "model": "H100"}})


def seen(given=None, shown=None, inventory=FOUR, **more):
    return [GPUS.index(key) for key in devices(Visible(given, shown, **more), inventory).gpus]


@pytest.mark.parametrize(
    ("given", "shown", "numbers"),
    [
        (GPUS[2], None, [2]), (f"{GPUS[3]},{GPUS[1]}", None, [1, 3]), ("1,3", None, [1, 3]),
        (None, "2", [2]), (None, "3,1", [3, 1]), ("", "0", []), ("all", "1", [1]), (None, GPUS[2], [2]),
        ("2,3", "0", [2]), (f"{GPUS[3]},{GPUS[1]}", "0", [1]), ("2,3", "1,0", [3, 2]), ("2,3", GPUS[3][:12], [3]),
        (None, "0,-1,1", [0]), (None, "0,9,1", [0]), (None, "-1", []), (None, "", []),
        ("void", "0", []), ("none", None, []), ("void", GPUS[1], [1]), ("all", None, []), (None, None, []),
        ("GPU-unknown", None, []), ("0,nonsense", None, []),
    ],
)  # fmt: skip
def test_what_the_two_variables_show(given, shown, numbers):
    """Given by the host's numbering and numbered anew inside; the first that is none ends CUDA's list."""
    assert seen(given, shown) == numbers


def test_a_lone_device_is_what_all_means():
    assert seen("all", inventory=ONE) == seen(None, inventory=ONE) == [0]


def test_in_a_pod_all_says_nothing_because_images_set_it():
    """CUDA's number 0 would be the first of the host's devices, which another pod may have."""
    assert seen("all", "0", in_pod=True) == []
    assert seen(GPUS[2], "0", in_pod=True, contained=True) == [2]


def test_numbers_in_a_container_that_does_not_say_what_it_was_given_are_nobodys():
    assert seen(None, "0", contained=True) == []


def test_devices_of_different_models_are_numbered_by_speed_unless_told():
    assert seen(None, "0", inventory=MIXED) == []
    assert seen(None, "0", inventory=MIXED, order="PCI_BUS_ID") == [0]
    assert seen(None, GPUS[1], inventory=MIXED) == [1]


def test_why_there_is_none_is_said():
    assert "all of 4 devices" in devices(Visible("all"), FOUR).why
    assert "not in its environment" in devices(Visible("void"), FOUR).why
    assert "GPU-x" in devices(Visible("GPU-x"), FOUR).why


def test_only_three_variables_are_kept_of_an_environment(tmp_path):
    proc = ProcTree(tmp_path)
    secret = {"HF_TOKEN": "hf_secret", "NVIDIA_VISIBLE_DEVICES": GPUS[1], "CUDA_VISIBLE_DEVICES": "0", "PATH": "/bin"}
    proc.add(41, environ=secret, cgroup=kubepods("vllm"))
    told = read(41, tmp_path)
    assert told == Visible(GPUS[1], "0", contained=True, in_pod=True)
    assert "secret" not in repr(told)


def test_an_environment_that_may_not_be_read_is_none(tmp_path):
    ProcTree(tmp_path).add(41)
    assert read(41, tmp_path) is None
    assert read(4242, tmp_path) is None


_words = st.one_of(
    st.none(), st.text(max_size=40), st.lists(st.sampled_from([*GPUS, "0", "1", "7", "-1"])).map(",".join)
)


@given(_words, _words, st.booleans(), st.booleans())
def test_whatever_they_say_only_devices_that_are_seen_are_named_or_why_not(given, shown, contained, in_pod):
    said = devices(Visible(given, shown, contained=contained, in_pod=in_pod), FOUR)
    assert set(said.gpus) <= set(GPUS)
    assert len(said.gpus) == len(set(said.gpus))
    assert bool(said.gpus) != bool(said.why)
