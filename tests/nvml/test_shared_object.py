"""The same source over a real shared object: ctypes, structs and the threads as they are with a driver."""

import asyncio
import os
import subprocess
import sys
import textwrap

import pynvml
import pytest

from gpuwatch.sources.poll import Poller
from tests.metric_names import REPOSITORY
from tests.nvml import shared_object
from tests.nvml.looking import Looker, events, facts, readings

pytestmark = pytest.mark.skipif(shared_object.compiler() is None, reason="no C compiler here")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return shared_object.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def driver(built, tmp_path, monkeypatch):
    """The library under the binding; returns a function that writes a script and makes the library read it."""
    script = tmp_path / "script"
    monkeypatch.setenv("NVML_SCRIPT", str(script))
    loaded = shared_object.load(built)
    monkeypatch.setattr(pynvml, "nvmlLib", loaded)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})

    def write(devices=1, **more):
        shared_object.write(script, devices, **more)
        loaded.scripted_reload()

    return write


@pytest.fixture
def looker():
    made = Looker()
    yield made
    made.close()


def test_a_device_is_read_through_ctypes(driver, looker):
    driver()
    said = looker.look()
    assert facts(said, "GPU-0")["peak_dram_bytes_per_second"] == "3.352e+12"
    values = readings(said, "GPU-0")
    assert (values["gpu_power_watts"], values["gpu_memory_reserved_bytes"]) == (572, 1073741824)
    assert {p.pid for p in looker.source.owners()["GPU-0"]} == {4242}
    driver(_0__field270=500_000_000)
    values = readings(looker.look(), "GPU-0")
    assert values["gpu_sm_active_ratio"] == pytest.approx(0.913)
    assert values["gpu_throttled_ratio"] == pytest.approx(0.5)


def test_a_lost_device_and_its_neighbour(driver, looker):
    driver(2)
    looker.look()
    driver(2, _1__lost=15)
    said = looker.look()
    assert events(said) == [("gpu/GPU-1", "gpu_lost")]
    assert readings(said, "GPU-0")["gpu_power_watts"] == 572
    driver(2)
    assert [event for _ in range(20) for event in events(looker.look())] == [("gpu/GPU-1", "gpu_returned")]


def test_an_xid_comes_from_a_wait_that_really_waits(driver, looker):
    """Through polls of the loop: the waiting thread lets the interpreter go."""
    driver()

    async def story():
        poller = Poller(looker.source)
        assert (await poller.poll(looker.clock.now())).error is None
        driver(xid=79)
        async with asyncio.timeout(10):
            while True:
                looker.clock.t += 1
                heard = (await poller.poll(looker.clock.now())).events
                if heard:
                    return heard

    assert [(e.subject.gpu, e.what, e.detail) for e in asyncio.run(story())] == [("GPU-0", "xid", {"code": "79"})]


@pytest.mark.parametrize("code", [3, 4])
def test_a_call_that_is_refused_by_the_driver(driver, looker, code):
    driver(_0__power_bang=code)
    values = readings(looker.look(), "GPU-0")
    assert "gpu_power_watts" not in values
    assert values["gpu_util_ratio"] == 0.97


def test_by_default_the_agent_asks_what_the_loader_finds(built, tmp_path):
    """Another process, the library on its search path, an empty configuration: the devices are read."""
    script = tmp_path / "script"
    shared_object.write(script, 2)
    program = """
        import asyncio
        from gpuwatch.agent.agent import build_sources
        from gpuwatch.clock import WallClock
        from gpuwatch.config import Config

        async def main():
            source = next(s for s in build_sources(Config(), WallClock(), "node7") if s.role == "gpu")
            batch = await source.poll(0.0)
            print(source.name, batch.error, sorted({f.subject.gpu for f in batch.frames}))
            await source.aclose()

        asyncio.run(main())
    """
    world = {**os.environ, "LD_LIBRARY_PATH": str(built.parent), "NVML_SCRIPT": str(script)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=REPOSITORY, env=world, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "nvml None ['GPU-0', 'GPU-1']\n", done.stderr
