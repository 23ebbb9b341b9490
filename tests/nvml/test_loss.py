"""Lost devices, lost drivers, and drivers that stall: said once, tried again, never a crash."""

import asyncio
import threading

import pynvml
import pytest

from gpuwatch.model import Subject
from gpuwatch.sources.gpu.nvml import NvmlSource, library
from gpuwatch.sources.poll import Poller
from tests.nvml.looking import Looker, events, facts, readings
from tests.nvml.scripted import Code, hopper
from tests.sources.stub_server import HandClock


def test_a_lost_device_is_an_event_and_the_others_go_on(install):
    one, two = hopper("GPU-a"), hopper("GPU-b")
    _, looker = install(one, two)
    looker.look()
    two.lost = 15
    said = looker.look()
    assert said.error is None
    assert events(said) == [("gpu/GPU-b", "gpu_lost")]
    assert said.events[0].detail == {"index": "1", "error": "the GPU is lost"}
    assert readings(said, "GPU-b") == {"gpu_up": 0.0}
    assert readings(said, "GPU-a")["gpu_power_watts"] == 572
    later = [looker.look() for _ in range(10)]
    assert not any(said.events for said in later)
    assert readings(later[-1], "GPU-b") == {"gpu_up": 0.0}


def test_a_device_that_returns_is_found_by_its_uuid_wherever_it_is(install):
    """After a reset the index may be another; the subject is not."""
    one, two = hopper("GPU-a"), hopper("GPU-b")
    nvml, looker = install(one, two)
    looker.look()
    two.lost = 15
    looker.look()
    back = hopper("GPU-b")
    nvml.gpus = [back, one]
    heard = []
    for _ in range(20):
        heard += (said := looker.look()).events
        if heard:
            break
    assert [(e.subject.gpu, e.what) for e in heard] == [("GPU-b", "gpu_returned")]
    assert readings(said, "GPU-b")["gpu_power_watts"] == 572
    assert looker.values(10, "GPU-b")["gpu_up"] == 1.0


def test_a_lost_device_is_asked_for_ever_more_rarely(install):
    one, two = hopper("GPU-a"), hopper("GPU-b")
    nvml, looker = install(one, two)
    looker.look()
    two.lost = 15
    before = nvml.calls["nvmlDeviceGetCount_v2"]
    for _ in range(600):
        looker.look()
    assert 5 <= nvml.calls["nvmlDeviceGetCount_v2"] - before <= 30


def test_a_device_that_is_dead_from_the_start_is_said_and_the_other_is_read(install):
    one = hopper("GPU-a")
    _, looker = install(None, one)
    said = looker.look()
    assert said.error is None
    assert readings(said)["gpu_up"] == 1.0
    host = next(info for info in said.info if info.subject == Subject(host="node7"))
    assert host.labels == {"gpus": "1", "gpus_unreachable": "0: the GPU is lost"}


def test_the_only_device_may_be_the_one_that_is_lost(install):
    gpu = hopper()
    _, looker = install(gpu)
    looker.look()
    gpu.lost = 15
    assert events(looker.look()) == [("gpu/GPU-a", "gpu_lost")]
    gpu.lost = 0
    heard = [event for _ in range(20) for event in events(looker.look())]
    assert heard == [("gpu/GPU-a", "gpu_returned")]


def test_a_container_that_lost_its_device_rule_is_a_lost_driver(install):
    """ "Unknown error" for everything: no single look decides, three do; then the library is started anew."""
    one, two = hopper("GPU-a"), hopper("GPU-b")
    nvml, looker = install(one, two)
    looker.look()
    one.lost = two.lost = 999
    said = [looker.look() for _ in range(3)]
    assert [s.error for s in said[:2]] == [None, None]
    assert said[2].error == "NVML is lost: no device answers: unknown error"
    assert events(said[2]) == [("host/node7", "nvml_lost")]
    assert readings(said[2], "GPU-a") == {"gpu_up": 0.0}
    nvml.start = 999
    for _ in range(100):
        said = looker.look()
        assert said.error is not None
        assert not said.events
        assert readings(said, "GPU-b") == {"gpu_up": 0.0}
    nvml.start = one.lost = two.lost = 0
    heard = [event for _ in range(61) for event in events(looker.look())]
    assert heard == [("host/node7", "nvml_returned")]
    assert looker.values(1, "GPU-b")["gpu_power_watts"] == 572


def test_a_reloaded_driver_makes_all_handles_void(install):
    """UNINITIALIZED in the middle of a look: everything is looked for again, counters begin anew."""
    gpu = hopper()
    nvml, looker = install(gpu)
    looker.look()
    nvml.started = 0
    said = looker.look()
    assert said.error == "NVML is lost: nvmlDeviceGetClockInfo: not initialised"
    nvml.gpus = [hopper()]
    heard = [event for _ in range(3) for event in events(looker.look())]
    assert heard == [("host/node7", "nvml_returned")]
    assert looker.values()["gpu_power_watts"] == 572


def test_a_device_that_did_not_come_back_with_the_driver_is_said(install):
    one, two = hopper("GPU-a"), hopper("GPU-b")
    nvml, looker = install(one, two)
    looker.look()
    nvml.started = 0
    looker.look()
    nvml.gpus = [one]
    heard = [event for _ in range(3) for event in events(looker.look())]
    assert heard == [("host/node7", "nvml_returned"), ("gpu/GPU-b", "gpu_lost")]


@pytest.mark.parametrize(
    ("code", "words"),
    [(9, "the driver is not loaded"), (18, "restart it"), (999, "unknown error"), (4, "no permission"), (1234, "1234")],
)
def test_a_library_that_does_not_start_says_why_and_is_tried_ever_more_rarely(install, code, words):
    nvml, looker = install(hopper())
    nvml.start = code
    said = [looker.look() for _ in range(600)]
    assert all(s.error and words in s.error for s in said)
    assert not any(s.frames or s.events for s in said)
    assert nvml.calls["nvmlInitWithFlags"] <= 16
    nvml.start = 0
    assert any(looker.look().error is None for _ in range(61))


def test_without_a_library_there_is_an_error_and_no_crash(monkeypatch):
    """The real loader on a machine without a driver."""
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(library, "SONAME", "libnvidia-ml-that-is-not-there.so.1")
    monkeypatch.setattr(pynvml, "CDLL", lambda name: (_ for _ in ()).throw(OSError(name)))
    assert not library.is_there()
    looker = Looker()
    assert "is not there" in (looker.look().error or "")
    looker.close()


def test_no_devices_is_an_answer(install):
    _, looker = install()
    said = looker.look()
    assert said.error is None
    assert not said.frames
    assert [info.labels["gpus"] for info in said.info] == ["0"]


def test_an_error_while_counting_loses_the_library_and_not_the_agent(install):
    nvml, looker = install(hopper())
    nvml.missing.add("nvmlDeviceGetCount_v2")
    assert "function not found" in (looker.look().error or "")
    nvml.missing.discard("nvmlDeviceGetCount_v2")
    assert looker.look().error is None


def test_a_device_without_a_uuid_is_known_by_its_bus_address(install):
    gpu = hopper(Code(3))
    gpu.answers["nvmlDeviceGetPciInfo_v3"] = (b"0000:18:00.0", 0, 0x18, 0, 0x233010DE, 0, b"00000000:18:00.0")
    _, looker = install(gpu)
    assert looker.values(gpu="00000000:18:00.0")["gpu_power_watts"] == 572


def test_a_driver_that_stalls_is_reported_with_its_age_and_not_waited_for(install):
    """The call takes as long as it takes; each poll in the meantime ends at once and says for how long it has been."""
    nvml, looker = install(hopper(), patience_s=0.2)
    source, clock = looker.source, looker.clock
    nvml.gate["nvmlDeviceGetPowerUsage"] = gate = threading.Event()

    async def story():
        poller = Poller(source)
        first = await poller.poll(clock.now())
        await asyncio.to_thread(nvml.entered.wait, 10)
        clock.t += 3.0
        second = await poller.poll(clock.now())
        gate.set()
        third = fourth = second
        while third.error:
            third = await poller.poll(clock.now())
        clock.t += 1.0
        fourth = await poller.poll(clock.now())
        await source.aclose()
        return first, second, third, fourth

    first, second, third, fourth = asyncio.run(story())
    assert (first.error or "").startswith("the driver has not answered for 0.2 s")
    assert second.error == "the driver has not answered for 3.0 s (in nvmlDeviceGetPowerUsage)"
    assert readings(third)["gpu_power_watts"] == readings(fourth)["gpu_power_watts"] == 572
    assert nvml.calls["nvmlInitWithFlags"] == 1


def test_closing_does_not_wait_for_a_driver_that_stalls(install):
    nvml, looker = install(hopper(), patience_s=0.02)
    nvml.gate["nvmlDeviceGetPowerUsage"] = gate = threading.Event()

    async def story():
        await looker.source.poll(looker.clock.now())
        await asyncio.wait_for(looker.source.aclose(), 5)

    asyncio.run(story())
    gate.set()


def test_polls_go_through_the_loop_like_those_of_any_source(install):
    _, looker = install(hopper())
    source: NvmlSource = looker.source

    async def story():
        batch = await Poller(source).poll(looker.clock.now())
        await source.aclose()
        return batch

    batch = asyncio.run(story())
    assert (batch.source, batch.role, batch.subject) == ("nvml", "gpu", Subject(host="node7"))
    assert batch.error is None
    assert batch.frames
    assert facts(batch)["model"]
    assert isinstance(looker.clock, HandClock)
