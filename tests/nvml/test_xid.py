"""XID events: each is heard once, a burst is cut and counted, and nothing depends on the driver being there."""

import pytest

from tests.nvml.looking import readings
from tests.nvml.scripted import Code, hopper


def heard(nvml, looker):
    """A look after the thread has taken everything that waited."""
    assert nvml.drained.wait(10)
    return looker.look()


def test_an_xid_is_an_event_of_its_device_and_counted(install):
    one, two = hopper("GPU-a"), hopper("GPU-b")
    nvml, looker = install(one, two)
    assert readings(looker.look(), "GPU-b")["gpu_xid_total"] == 0
    nvml.xid(two, 79)
    said = heard(nvml, looker)
    assert [(e.subject.gpu, e.what, e.detail) for e in said.events] == [("GPU-b", "xid", {"code": "79"})]
    assert readings(said, "GPU-b") | {"gpu_xid_total": 1, "gpu_xid_last_code": 79} == readings(said, "GPU-b")
    assert readings(said, "GPU-a")["gpu_xid_total"] == 0
    assert "gpu_xid_last_code" not in readings(said, "GPU-a")
    assert not looker.look().events


def test_an_unknown_xid_is_999_and_still_one(install):
    nvml, looker = install(hopper())
    looker.look()
    nvml.xid(nvml.gpus[0], 999)
    assert heard(nvml, looker).events[0].detail == {"code": "999"}


def test_an_event_of_a_device_that_nobody_knows_is_the_hosts(install):
    nvml, looker = install(hopper("GPU-a"), hopper("GPU-b"))
    looker.look()
    nvml.xid(None, 62)
    assert [e.subject.key for e in heard(nvml, looker).events] == ["host/node7"]


def test_an_event_without_a_device_is_the_only_devices(install):
    nvml, looker = install(hopper())
    looker.look()
    nvml.xid(None, 62)
    assert [e.subject.key for e in heard(nvml, looker).events] == ["gpu/GPU-a"]


def test_a_burst_is_cut_and_what_was_cut_is_counted(install):
    """Three hundred at once: 256 are kept for one look, the others are counted, nothing grows."""
    nvml, looker = install(hopper())
    looker.look()
    for _ in range(300):
        nvml.xid(nvml.gpus[0], 31)
    said = heard(nvml, looker)
    assert len(said.events) + said.dropped == 300
    assert len(said.events) <= 256


def test_the_tally_survives_the_driver(install):
    nvml, looker = install(hopper())
    looker.look()
    nvml.xid(nvml.gpus[0], 79)
    heard(nvml, looker)
    nvml.started = 0
    looker.look()
    for _ in range(3):
        values = readings(looker.look())
    assert values["gpu_xid_total"] == 1


def test_a_device_that_tells_no_events_has_no_count(install):
    """Zero would mean that somebody listened."""
    nvml, looker = install(hopper(events=0))
    said = looker.look()
    assert "gpu_xid_total" not in readings(said)
    info = next(info for info in said.info if info.subject.gpu)
    assert info.labels["xid_events"] == "no: not supported"
    assert nvml.calls["nvmlEventSetWait_v2"] == 0


@pytest.mark.parametrize("missing", ["nvmlEventSetCreate", "nvmlDeviceGetSupportedEventTypes", "nvmlEventSetWait_v2"])
def test_an_older_library_costs_events_at_most(install, missing):
    nvml, looker = install(hopper())
    nvml.missing.add(missing)
    looker.look()
    assert looker.values()["gpu_power_watts"] == 572


@pytest.mark.parametrize(
    ("bit", "kind"),
    [(0x2, "double_bit_ecc"), (0x400, "page_retired"), (0x4000, "unavailable"), (0x8000, "recovery_action")],
)
def test_other_events_are_told_by_their_kind(install, bit, kind):
    nvml, looker = install(hopper())
    looker.look()
    nvml.xid(nvml.gpus[0], 3, bit)
    said = heard(nvml, looker)
    assert [(e.what, e.detail) for e in said.events] == [("gpu_event", {"kind": kind, "number": "3"})]


def test_a_changed_cut_is_looked_at_when_the_driver_says_so(install):
    gpu = hopper()
    nvml, looker = install(gpu)
    looker.look()
    before = nvml.calls["nvmlDeviceGetMigMode"]
    nvml.xid(gpu, 0, 0x100)
    heard(nvml, looker)
    assert nvml.calls["nvmlDeviceGetMigMode"] == before + 1


def test_a_wait_that_fails_is_not_repeated_at_once(install):
    """A lost device makes every wait fail; that must not cost a core."""
    nvml, looker = install(hopper(), hopper("GPU-b"))
    nvml._nvmlEventSetWait_v2 = lambda *_: (nvml.drained.set(), Code(15))[1]
    looker.look()
    assert nvml.drained.wait(10)
    looker.look()
    assert nvml.calls["nvmlEventSetWait_v2"] <= 2
