"""Roles: what each looks at, and an engine's agent that knows its device from the node's agent."""

import asyncio
import re
from pathlib import Path

import pytest

from gpuwatch.agent.agent import Agent, build_sources
from gpuwatch.agent.roles import in_role, node_url
from gpuwatch.clock import WallClock
from gpuwatch.config import ConfigError, parse
from gpuwatch.model import Subject
from gpuwatch.sources.gpu.dcgm import DcgmPage
from gpuwatch.sources.gpu.ownership.holder import Holder
from gpuwatch.sources.gpu.ownership.mapping import DeviceMap, DeviceUse
from gpuwatch.wire.exposition import parse as parse_page
from tests.nvml.scripted import GIB, Scripted, ScriptedNvml, hopper
from tests.ownership.kubelet_server import answer, pod, serving
from tests.sources.stub_server import HandClock, Reply, StubServer

pytestmark = pytest.mark.anyio
PAGE = (Path(__file__).parents[1] / "captures" / "shim-0.1.0.txt").read_bytes()
OURS, THEIRS = "GPU-aaaaaaaa-1111-4abc-9def-0123456789ab", "GPU-bbbbbbbb-1111-4abc-9def-0123456789ab"
CLOSED = {"listen": "127.0.0.1:0", "otlp_listen": "127.0.0.1:0", "otlp_grpc_listen": ""}


def config_of(tmp_path, role, environ, name, **settings):
    return in_role(parse(CLOSED | {"state_dir": str(tmp_path / name)} | settings), role, environ)


def kinds(config):
    return {type(source).__name__ for source in build_sources(config, HandClock(), "node7")}


# --- what a role is ---------------------------------------------------------------------------------------------


def test_an_engines_agent_opens_no_driver_and_looks_at_no_process(tmp_path):
    engines = [{"url": "http://127.0.0.1:8000", "pid": 1}]
    config = config_of(tmp_path, "engine", {}, "e", engines=engines, gpu={"nvml": True})
    assert not {"NvmlSource", "HostSource", "EngineHostSource"} & kinds(config)
    assert (config.stacks.on_incident, config.gpu.kubelet_socket) == (False, "")
    assert {"NvmlSource", "HostSource"} <= kinds(
        config_of(tmp_path, "all", {}, "a", engines=engines, gpu={"nvml": True})
    )


def test_an_engines_agent_finds_the_nodes_by_its_environment():
    config = parse(
        {"engines": [{"url": "http://127.0.0.1:8000"}, {"url": "http://127.0.0.1:8001", "gpu_url": "http://x/m"}]}
    )
    for environ, url in (
        ({"HOST_IP": "10.1.2.3"}, "http://10.1.2.3:9400/gpu/metrics"),
        ({"HOST_IP": "fd00::7"}, "http://[fd00::7]:9400/gpu/metrics"),
        ({"HOST_IP": "10.1.2.3", "GPUWATCH_NODE_URL": "http://node:9500"}, "http://node:9500/gpu/metrics"),
        ({"GPUWATCH_NODE_URL": "https://node/x/gpu"}, "https://node/x/gpu"),
        ({}, ""),
    ):
        assert [e.gpu_url for e in in_role(config, "engine", environ).engines] == [url, "http://x/m"]
    assert in_role(config, None, {"HOST_IP": "10.1.2.3"}).engines[0].gpu_url == "", "only a role that needs one guesses"


def test_an_engine_of_the_agents_pod_has_the_pods_name_unless_it_has_its_own():
    """`localhost:8000` is in every pod, and would be one engine to whoever groups by it."""
    urls = [
        {"url": "http://localhost:8000"},
        {"url": "http://127.0.0.1:8001", "name": "draft"},
        {"url": "http://10.0.0.9:8000"},
    ]
    named = [e.name for e in in_role(parse({"engines": urls}), "engine", {"POD_NAME": "decode-0"}).engines]
    assert named == ["decode-0", "draft", "10.0.0.9:8000"]
    two = parse({"engines": [{"url": "http://localhost:8000"}, {"url": "http://localhost:8001"}]})
    assert [e.name for e in in_role(two, "engine", {"POD_NAME": "p"}).engines] == ["p:8000", "p:8001"]
    assert [e.name for e in in_role(two, "all", {"POD_NAME": "p"}).engines] == ["localhost:8000", "localhost:8001"]


def test_a_node_url_that_is_none_and_a_node_with_engines_are_refused():
    with pytest.raises(ConfigError, match="GPUWATCH_NODE_URL"):
        node_url({"GPUWATCH_NODE_URL": "node:9400"})
    with pytest.raises(ConfigError, match="role"):
        in_role(parse({"role": "node", "engines": [{"url": "http://127.0.0.1:8000"}]}), None, {})


def test_engines_that_name_one_page_share_one_source():
    config = parse(
        {"engines": [{"url": f"http://127.0.0.1:800{n}", "gpu_url": "http://n/gpu/metrics"} for n in range(3)]}
    )
    sources = build_sources(config, HandClock(), "node7")
    assert [s.name for s in sources if s.role == "gpu" and s.name.startswith("dcgm")] == ["dcgm:n/gpu"]


# --- end to end -------------------------------------------------------------------------------------------------


class Pair:
    """A node's agent with scripted devices and an engine's agent beside it, on one hand-driven clock."""

    def __init__(self, tmp_path, nvml_gpus, engine_url, monkeypatch, environ, **node):
        self.hand = HandClock()
        self.nvml = ScriptedNvml(*nvml_gpus).install(monkeypatch)
        node = {"gpu": {"nvml": True, "amd": False, "intel": False, **node}, "host": False}
        self.node = self._agent(config_of(tmp_path, "node", {}, "node", **node))
        self._engine = lambda url: config_of(
            tmp_path, "engine", {"GPUWATCH_NODE_URL": url}, "engine", engines=[{"url": engine_url, "name": "shim"}]
        )
        for key, value in environ.items():
            monkeypatch.setenv(key, value)

    def _agent(self, config):
        return Agent(config, WallClock(self.hand.now, lambda: self.hand.t), host="node7")

    async def __aenter__(self):
        await self.node.start()
        port = self.node.servers[0].port
        self.engine = self._agent(self._engine(f"http://127.0.0.1:{port}"))
        await self.engine.start(serve=False)
        await asyncio.gather(self.node.warmed(), self.engine.warmed())
        return self

    async def __aexit__(self, *_):
        await self.engine.close()
        await self.node.close()

    async def seconds(self, count):
        for _ in range(count):
            self.hand.t += 1.0
            await self.node.watch.tick(self.hand.t, 5.0)
            await self.engine.watch.tick(self.hand.t, 5.0)

    @property
    def state(self):
        return self.engine.watch.last.states[0]


def busy(uuid, dram, tensor=10.0):
    gpu = hopper(uuid)
    gpu.gpm |= {10: dram, 5: tensor}
    return gpu


async def test_an_engines_agent_knows_its_device_from_the_nodes_agent(tmp_path, monkeypatch):
    """The kubelet names the pod on the node; the engine's agent knows its pod; what comes out is how its GPU is busy."""
    gpus = [busy(OURS, 80.0), busy(THEIRS, 3.0)]
    environ = {"POD_NAME": "decode-0", "POD_NAMESPACE": "llm"}
    async with serving(tmp_path / "k.sock") as kubelet, StubServer(lambda _: Reply(PAGE)) as server:
        gpu = "nvidia.com/gpu"
        kubelet.message = answer(
            pod("llm", "decode-0", vllm={gpu: [OURS]}), pod("dev", "notebook", main={gpu: [THEIRS]})
        )
        socket = {"kubelet_socket": str(tmp_path / "k.sock")}
        async with Pair(tmp_path, gpus, server.url, monkeypatch, environ, **socket) as pair:
            await pair.seconds(30)
            assert pair.state.gpu.mode == "bandwidth-bound"
            window = pair.engine.watch.pipeline.window(Subject(engine="shim"))
            assert [h.subject.gpu for h in window.gpus] == [OURS]
            assert window.gpu_mean("gpu_dram_active_ratio", 5) == pytest.approx(0.8)
            assert window.gpus[0].sources("gpu_power_watts") == ("node",)
            assert pair.engine.ownership.map.engines["shim"].how == "exporter"
            calls = pair.nvml.calls["nvmlDeviceGetPowerUsage"]
            await pair.seconds(3)
            assert pair.nvml.calls["nvmlDeviceGetPowerUsage"] - calls == 2 * 3, "one agent asks, once a second"


async def test_a_lost_device_an_xid_and_a_node_that_is_away_reach_the_engine(tmp_path, monkeypatch):
    """Readings of a node that does not answer are missing after a moment, not held for ever."""
    gpu = busy(OURS, 80.0)
    async with StubServer(lambda _: Reply(PAGE)) as server, Pair(tmp_path, [gpu], server.url, monkeypatch, {}) as pair:
        await pair.seconds(12)
        assert pair.state.gpu.mode == "bandwidth-bound", "a lone engine with a lone device needs no map"
        history = pair.engine.watch.pipeline.memory[Subject(gpu=OURS).key]
        for seen in (1, 2):  # the same code twice is two events: the node counts them
            pair.nvml.xid(gpu, 79)
            await asyncio.to_thread(pair.nvml.drained.wait, 30)
            await pair.seconds(3)
            assert [event.detail["code"] for event in history.events if event.what == "xid"] == ["79"] * seen
        gpu.lost = 15
        await pair.seconds(4)
        level = pair.engine.watch.pipeline.level
        assert level(Subject(gpu=OURS), "gpu_up") == 0
        gpu.lost = 0
        await pair.node.close()
        pair.node.close = lambda: asyncio.sleep(0)
        for _ in range(40):
            pair.hand.t += 1.0
            await pair.engine.watch.tick(pair.hand.t, 5.0)
        assert pair.state.gpu.mode == "unknown"


async def test_mig_instances_travel_with_their_board_apart(tmp_path, monkeypatch):
    """Each instance under its own key, and the board's power once."""
    part = Scripted("MIG-11111111-2222-3333-4444-555555555555", gpm={2: 90.0, 3: 20.0, 5: 9.0, 10: 70.0}, instance=7)
    part.answers["nvmlDeviceGetMemoryInfo"] = (16 * GIB, 4 * GIB, 12 * GIB)
    board = hopper(OURS, mig={0: part})
    board.answers["nvmlDeviceGetMigMode"] = (1, 1)
    async with (
        StubServer(lambda _: Reply(PAGE)) as server,
        Pair(tmp_path, [board], server.url, monkeypatch, {}) as pair,
    ):
        await pair.seconds(8)
        page = DcgmPage()
        page.read(pair.node.desk.gpu_metrics().encode(), 1.0)
        assert set(page.devices) == {OURS, f"{OURS}/7"}
        assert page.devices[f"{OURS}/7"]["mig_uuid"] == part.uuid
        level = pair.engine.watch.pipeline.level
        assert level(Subject(gpu=f"{OURS}/7"), "gpu_dram_active_ratio") == pytest.approx(0.7)
        assert level(Subject(gpu=OURS), "gpu_power_watts") == 572


async def test_a_shared_device_says_all_its_holders_and_hostile_names_stay_labels(tmp_path, monkeypatch):
    """Rows name a holder only where it is the only one; quotes, backslashes and line feeds are escaped."""
    async with (
        StubServer(lambda _: Reply(PAGE)) as server,
        Pair(tmp_path, [busy(OURS, 50.0)], server.url, monkeypatch, {}) as pair,
    ):
        await pair.seconds(3)
        hostile = Holder("llm", 'a"b\\c\nd{}', "x")
        uses = {OURS: DeviceUse((), (hostile, Holder("dev", "notebook")), "time_slicing", True)}
        pair.node.ownership.map = DeviceMap({}, uses)
        text = pair.node.desk.gpu_metrics()
    page = parse_page(text.encode())
    assert page.dropped == 0
    owners = [one.labels for one in page.series if one.name == "gpuwatch_gpu_owner"]
    assert [(o["namespace"], o["pod"]) for o in owners] == [("llm", hostile.pod), ("dev", "notebook")]
    assert not any("pod" in one.labels for one in page.series if one.name != "gpuwatch_gpu_owner")
    reader = DcgmPage()
    reader.read(text.encode(), 1.0)
    assert [holder.words for holder in reader.holders[OURS]] == [hostile.words, "dev/notebook"]


async def test_the_page_is_what_prometheus_calls_a_page(tmp_path, monkeypatch):
    """One HELP and one TYPE a name, no series twice, no value that is not known."""
    async with (
        StubServer(lambda _: Reply(PAGE)) as server,
        Pair(tmp_path, [busy(OURS, 50.0), busy(THEIRS, 5.0)], server.url, monkeypatch, {}) as pair,
    ):
        await pair.seconds(4)
        text = pair.node.desk.gpu_metrics()
    types = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(types) == len(set(types)) == len(re.findall(r"^# HELP ", text, re.MULTILINE))
    series = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))
    assert "nan" not in text.lower().replace("nvidia", "")
    assert 'DCGM_FI_PROF_DRAM_ACTIVE{gpu="0",UUID="GPU-aaaaaaaa' in text
