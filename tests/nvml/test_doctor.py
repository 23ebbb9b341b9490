"""The doctor on drivers: which devices answer, which do not and why, what they cannot tell, and that there is no driver."""

import asyncio

from gpuwatch.config import parse
from gpuwatch.doctor import checkup
from gpuwatch.doctor.drivers import driver_lines, drivers_of
from gpuwatch.sources.gpu import devices
from tests.nvml.scripted import ampere, hopper


def test_devices_are_counted_by_model_and_what_they_cannot_tell_is_said(install):
    _, looker = install(hopper("GPU-a"), ampere("GPU-b"), hopper("GPU-c"))
    looker.look()
    (seen,) = drivers_of([looker.source], wanted=True)
    assert sorted(seen.models.values()) == [1, 2]
    assert list(seen.lacking.values()) == [1]
    assert "1 of 3 without SM, tensor and memory activity: no GPM" in "\n".join(driver_lines([seen]))
    assert "--print-counters" in seen.change


def test_a_device_that_is_dead_from_the_start_and_one_that_is_lost_are_both_named(install):
    """Also after the library was closed, which is when the doctor writes."""
    lost = hopper("GPU-b")
    _, looker = install(hopper("GPU-a"), lost, None)
    looker.look()
    lost.lost = 15
    looker.look()
    looker.close()
    (seen,) = drivers_of([looker.source], wanted=True)
    assert sum(seen.models.values()) == 1
    assert seen.unreachable == {"index 2": "the GPU is lost", "GPU-b": "the GPU is lost"}
    assert "  --  GPU-b does not answer: the GPU is lost" in driver_lines([seen])


def test_a_node_without_a_driver_is_told_so_and_no_rule_is_called_well(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "_is_there", lambda _: False)
    report = asyncio.run(checkup.examine(parse({"role": "node", "state_dir": str(tmp_path), "host": False}), 1))
    text = checkup.text(report)
    assert report.seeing == []
    assert "no NVIDIA, AMD or Intel driver" in text
    assert "NVIDIA_VISIBLE_DEVICES=all" in text
    assert "agents beside engines judge them" in text
