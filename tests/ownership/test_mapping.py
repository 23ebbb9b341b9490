"""Whose device it is: every way of knowing, in the order of trust, and what is left when none knows."""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.config import EngineTarget
from gpuwatch.sources.gpu.ownership.claims import ORDER, Claim
from gpuwatch.sources.gpu.ownership.clues import Pid, find_process
from gpuwatch.sources.gpu.ownership.holder import Holder
from gpuwatch.sources.gpu.ownership.kubelet import Kubelet
from gpuwatch.sources.gpu.ownership.mapping import decide, put_together
from gpuwatch.sources.gpu.ownership.source import OwnershipSource, World
from tests.ownership.kubelet_server import answer, pod, serving
from tests.ownership.proc_tree import POD_UID, ProcTree, kubepods, on
from tests.sources.stub_server import HandClock

GPUS = [f"GPU-{letter * 8}-1111-4abc-9def-0123456789ab" for letter in "abcd"]
A, B, C, D = GPUS
OTHER_UID = "99999999-6d0e-4c0b-9d5e-7e0f4c5b1a90"
VLLM = EngineTarget("http://10.0.0.7:8000", "vllm", pod="llm/decode-0")
TWO = (VLLM, EngineTarget("http://10.0.0.8:8000", "sglang", pod="llm/prefill-0"))


class Book:
    """A source that knows four devices."""

    def __init__(self, devices=None):
        self.found = devices or {uuid: {"index": str(n), "model": "H100"} for n, uuid in enumerate(GPUS)}

    def devices(self):
        return self.found


def source_of(engines, tmp_path, book=None, **world):
    lists, pages, pids = (world.pop(name, {}) for name in ("lists", "pages", "pids"))
    made = World([book or Book()], lambda: lists, lambda: pages, lambda: pids, proc=tmp_path, **world)
    return OwnershipSource(engines, made, HandClock(1000.0), "node7")


def looked(source, pids=None):
    """engine → (how, devices by number)."""
    source.map = source.look(pids if pids is not None else dict(source._world.pids()))
    return {name: (one.how, [GPUS.index(gpu) for gpu in one.gpus]) for name, one in source.map.engines.items()}


def of(source, gpu):
    """Engines on a device, and how it is shared."""
    use = source.map.devices[gpu]
    return [engine for engine, _ in use.engines], use.sharing


@pytest.fixture
def proc(tmp_path):
    return ProcTree(tmp_path / "proc")


# --- processes --------------------------------------------------------------------------------------------------


def test_tensor_parallel_workers_are_children_and_bring_several_devices(proc):
    """The process that serves HTTP is on no device; its workers are."""
    proc.add(100, "vllm")
    proc.add(101, "EngineCore", parent=100)
    proc.add(102, "Worker_TP0", parent=101)
    proc.add(103, "Worker_TP1", parent=101)
    source = source_of(
        (VLLM,), proc.root, lists={A: on(102), B: on(103), C: on(), D: on()}, pids={"vllm": Pid(100, "config")}
    )
    assert looked(source) == {"vllm": ("processes", [0, 1])}
    assert [of(source, gpu) for gpu in GPUS] == [(["vllm"], ""), (["vllm"], ""), ([], ""), ([], "")]


def test_a_device_of_another_process_is_known_to_be_nobodys_of_ours(proc):
    proc.add(100)
    proc.add(500, "train.py", session=500)
    source = source_of((VLLM,), proc.root, lists={A: on(100), B: on(500)}, pids={"vllm": Pid(100, "config")})
    looked(source)
    assert of(source, B) == ([], "")
    assert source.map.devices[B].is_known
    assert source.map.devices[B].holders[0].pid == 500


def test_workers_of_one_container_belong_together_whoever_their_parent_is(proc):
    """A worker that was handed to the first process is found by its container."""
    proc.add(100, cgroup=kubepods("vllm"))
    proc.add(102, parent=1, cgroup=kubepods("vllm"))
    proc.add(200, cgroup=kubepods("sglang", OTHER_UID))
    source = source_of((VLLM,), proc.root, lists={A: on(102), B: on(200)}, pids={"vllm": Pid(100, "config")})
    assert looked(source) == {"vllm": ("processes", [0])}


def test_two_engines_on_one_device_share_it(proc):
    proc.add(100)
    proc.add(200)
    pids = {"vllm": Pid(100, "config"), "sglang": Pid(200, "config")}
    source = source_of(TWO, proc.root, lists={A: on(100, 200)}, pids=pids)
    assert looked(source) == {"vllm": ("processes", [0]), "sglang": ("processes", [0])}
    assert of(source, A) == (["vllm", "sglang"], "processes")


def test_a_foreign_process_beside_the_engine_shares_its_device(proc):
    proc.add(100)
    proc.add(500, "train.py", session=500)
    source = source_of((VLLM,), proc.root, lists={A: on(100, 500)}, pids={"vllm": Pid(100, "config")})
    looked(source)
    assert of(source, A) == (["vllm"], "processes")


def test_several_processes_of_one_engine_share_nothing(proc):
    proc.add(100)
    proc.add(101, parent=100, session=7)
    source = source_of((VLLM,), proc.root, lists={A: on(100, 101)}, pids={"vllm": Pid(100, "config")})
    looked(source)
    assert of(source, A) == (["vllm"], "")


def test_the_multi_process_service_holds_nothing_itself(proc):
    """One client beside its server is alone; two share by MPS."""
    proc.add(100)
    proc.add(200)
    proc.add(300, "nvidia-cuda-mps-server")
    source = source_of((VLLM,), proc.root, lists={A: on(100, 300)}, pids={"vllm": Pid(100, "config")})
    looked(source)
    assert of(source, A) == (["vllm"], "")
    source = source_of((VLLM,), proc.root, lists={A: on(100, 200, 300)}, pids={"vllm": Pid(100, "config")})
    looked(source)
    assert of(source, A) == (["vllm"], "mps")


def test_pids_of_the_host_mean_nothing_where_its_processes_are_not_seen(tmp_path):
    """In a container's own namespace pid 100 may be anybody."""
    proc = ProcTree(tmp_path / "proc", hosts=False)
    proc.add(100)
    source = source_of((VLLM,), proc.root, lists={A: on(100)}, pids={"vllm": Pid(100, "config")})
    assert looked(source) == {"vllm": ("", [])}
    assert any("hostPID" in claim.why for claim in source.map.engines["vllm"].claims)
    assert not source.map.devices[A].is_known


def test_a_restart_moves_the_engine_to_its_new_device(proc):
    """Everything is looked at anew: another pid, another device."""
    proc.add(100)
    proc.add(150)
    lists = {A: on(100), B: on()}
    source = source_of((VLLM,), proc.root, lists=lists, pids={"vllm": Pid(100, "config")})
    assert looked(source)["vllm"] == ("processes", [0])
    lists |= {A: on(), B: on(150)}
    assert looked(source, {"vllm": Pid(150, "config")})["vllm"] == ("processes", [1])


# --- who the engine is ------------------------------------------------------------------------------------------


def test_a_rings_pid_is_found_among_the_hosts_by_the_ring_that_it_has_mapped(proc):
    """In its container the engine calls itself 7; on the host two processes do."""
    proc.add(4100, own=7, maps="/dev/shm/gpuwatch/vllm-0.ring")
    proc.add(4200, own=7, maps="/dev/shm/other.ring")
    proc.add(4101, parent=4100)
    proc.add(4201, parent=4200)
    told = Pid(7, "ring", "vllm-0.ring")
    assert find_process(told, VLLM, [4101, 4201], proc.root) == 4100


def test_a_rings_pid_that_fits_somebody_else_here_is_not_taken(proc):
    """Process 7 of this namespace is another program."""
    proc.add(7, "nginx", own=7)
    assert find_process(Pid(7, "ring", "vllm-0.ring"), VLLM, [], proc.root) == 0


def test_an_engine_on_this_host_is_found_by_its_port(proc):
    """The parent that forked the listeners, on IPv6 too; another port is another process."""
    proc.add(100)
    proc.add(101, parent=100)
    proc.add(300)
    for pid in (100, 101):
        proc.listens(pid, 8000, 77, "tcp6")
    proc.listens(300, 9000, 78)
    assert find_process(Pid(), EngineTarget("http://localhost:8000", "vllm"), [], proc.root) == 100
    assert find_process(Pid(), EngineTarget("http://127.0.0.1:9000", "x"), [], proc.root) == 300
    assert find_process(Pid(), EngineTarget("http://[::1]:9001", "x"), [], proc.root) == 0
    assert find_process(Pid(), EngineTarget("http://10.0.0.7:8000", "x"), [], proc.root) == 0


# --- environment ------------------------------------------------------------------------------------------------


def test_the_environment_serves_where_no_driver_lists_processes(proc):
    proc.add(100, environ={"CUDA_VISIBLE_DEVICES": "2,3"})
    source = source_of((VLLM,), proc.root, pids={"vllm": Pid(100, "config")})
    assert looked(source) == {"vllm": ("environment", [2, 3])}


def test_processes_are_believed_before_the_environment(proc):
    """It was shown four devices and uses one."""
    proc.add(100, environ={"NVIDIA_VISIBLE_DEVICES": ",".join(GPUS)})
    source = source_of((VLLM,), proc.root, lists={B: on(100)}, pids={"vllm": Pid(100, "config")})
    assert looked(source) == {"vllm": ("processes", [1])}


# --- config -----------------------------------------------------------------------------------------------------


def test_the_configuration_wins_and_a_contradiction_is_said(proc):
    proc.add(100)
    target = EngineTarget("http://10.0.0.7:8000", "vllm", gpus=("0", "MIG-somewhere"))
    source = source_of((target,), proc.root, lists={B: on(100)}, pids={"vllm": Pid(100, "config")})
    source.map = source.look({"vllm": Pid(100, "config")})
    mapped = source.map.engines["vllm"]
    assert (mapped.how, mapped.gpus) == ("config", (A, "MIG-somewhere"))
    assert mapped.contradiction == f"processes says {B}"


# --- pods -------------------------------------------------------------------------------------------------------


def by_kubelet(tmp_path, message, engines, book=None, **world):
    """Polled once beside a real kubelet."""

    async def main():
        async with serving(tmp_path / "k.sock") as kubelet:
            kubelet.message = message
            (tmp_path / "empty").mkdir(exist_ok=True)
            source = source_of(engines, tmp_path / "empty", book, kubelet=Kubelet(tmp_path / "k.sock"), **world)
            await source.poll(1000.0)
            return source

    return asyncio.run(main())


def test_the_kubelet_says_which_pod_was_given_which_devices(tmp_path):
    gpu = "nvidia.com/gpu"
    message = answer(
        pod("llm", "decode-0", vllm={gpu: [A, B]}),
        pod("llm", "prefill-0", server={gpu: [C]}),
        pod("x", "y", z={gpu: [D]}),
    )
    source = by_kubelet(tmp_path, message, TWO)
    assert {name: (one.how, one.gpus) for name, one in source.map.engines.items()} == {
        "vllm": ("kubelet", (A, B)), "sglang": ("kubelet", (C,))
    }  # fmt: skip
    assert (of(source, D), source.map.devices[D].is_known) == (([], ""), True)
    assert source.map.devices[D].holders == (Holder("x", "y", "z"),)


def test_a_mig_instance_is_the_device_and_its_board_is_not(tmp_path):
    mig = "MIG-11111111-2222-3333-4444-555555555555"
    book = Book({A: {"index": "0"}, f"{A}/7": {"board": A, "mig_uuid": mig}, f"{A}/8": {"board": A}})
    source = by_kubelet(tmp_path, answer(pod("llm", "decode-0", vllm={"nvidia.com/mig-1g.10gb": [mig]})), (VLLM,), book)
    assert source.map.engines["vllm"].gpus == (f"{A}/7",)
    assert of(source, f"{A}/7") == (["vllm"], "")
    assert of(source, A) == of(source, f"{A}/8") == ([], "")


def test_shares_of_one_device_in_several_pods_are_time_slicing(tmp_path):
    gpu = "nvidia.com/gpu.shared"
    message = answer(pod("llm", "decode-0", vllm={gpu: [f"{A}::0"]}), pod("dev", "notebook", main={gpu: [f"{A}::1"]}))
    source = by_kubelet(tmp_path, message, (VLLM,))
    assert of(source, A) == (["vllm"], "time_slicing")
    alone = by_kubelet(tmp_path / "..", answer(pod("llm", "decode-0", vllm={gpu: [f"{A}::0"]})), (VLLM,))
    assert of(alone, A) == (["vllm"], ""), "a share that nobody else has is the whole device"


def test_several_engines_of_one_pod_need_the_container(tmp_path):
    """Devices of the pod could be either's; with the container they are one's."""
    gpu = "nvidia.com/gpu"
    message = answer(pod("llm", "both-0", first={gpu: [A]}, second={gpu: [B]}))
    both = [EngineTarget(f"http://10.0.0.7:{8000 + n}", f"e{n}", pod="llm/both-0") for n in (0, 1)]
    source = by_kubelet(tmp_path, message, both)
    assert [one.gpus for one in source.map.engines.values()] == [(), ()]
    assert "container" in source.map.engines["e0"].claims[1].why
    named = [EngineTarget(t.url, t.name, pod=f"llm/both-0/{c}") for t, c in zip(both, ("first", "second"), strict=True)]
    source = by_kubelet(tmp_path / "..", message, named)
    assert [one.gpus for one in source.map.engines.values()] == [(A,), (B,)]


def test_the_agents_own_pod_is_that_of_an_engine_on_the_loopback(tmp_path):
    target = EngineTarget("http://localhost:8000", "vllm")
    message = answer(pod("llm", "decode-0", vllm={"nvidia.com/gpu": [C]}))
    source = by_kubelet(tmp_path, message, (target,), own=Holder("llm", "decode-0"))
    assert source.map.engines["vllm"].gpus == (C,)


def test_an_exporters_pods_serve_where_nothing_else_does(tmp_path):
    pages = {A: (Holder("llm", "decode-0", "vllm"),), B: (Holder("llm", "other-0", "vllm"),), C: ()}
    source = source_of((VLLM,), tmp_path, pages=pages)
    assert looked(source) == {"vllm": ("exporter", [0])}
    assert source.map.devices[B].is_known
    assert source.map.devices[D].is_known, "the devices of all engines are known"


def test_a_pod_is_found_by_its_uid_in_the_engines_cgroup(proc):
    """The engine's process says its pod's uid, and the exporter's rows do."""
    proc.add(100, cgroup=kubepods("vllm"))
    target = EngineTarget("http://10.0.0.7:8000", "vllm")
    pages = {C: (Holder("llm", "decode-0", "vllm", POD_UID),), D: (Holder("llm", "decode-0", "vllm", OTHER_UID),)}
    source = source_of((target,), proc.root, pages=pages, pids={"vllm": Pid(100, "config")})
    assert looked(source) == {"vllm": ("exporter", [2])}


def test_without_evidence_nothing_is_mapped_and_each_source_says_why(tmp_path):
    source = source_of((EngineTarget("http://10.0.0.7:8000", "vllm"),), tmp_path)
    assert looked(source) == {"vllm": ("", [])}
    assert all(claim.why for claim in source.map.engines["vllm"].claims)
    assert not any(use.is_known or use.engines for use in source.map.devices.values())


def test_a_kubelet_is_asked_twice_a_minute_and_at_once_for_a_new_process(tmp_path):
    async def main():
        async with serving(tmp_path / "k.sock") as kubelet:
            kubelet.message = answer(pod("llm", "decode-0", vllm={"nvidia.com/gpu": [A]}))
            pids = {}
            source = source_of((VLLM,), tmp_path, kubelet=Kubelet(tmp_path / "k.sock"), pids=pids)
            calls = []
            for t in range(1000, 1062, 2):
                if t == 1040:
                    pids["vllm"] = Pid(7, "ring", "x")
                await source.poll(float(t))
                calls.append(kubelet.calls)
            return [1000 + 2 * n for n, (a, b) in enumerate(pairwise([0, *calls])) if b > a]

    assert asyncio.run(main()) == [1000, 1030, 1040]


# --- properties -------------------------------------------------------------------------------------------------

_claims = st.lists(
    st.builds(Claim, st.sampled_from(ORDER), st.lists(st.sampled_from(GPUS), unique=True).map(tuple)), max_size=6
)


@given(_claims)
def test_the_most_trusted_claim_that_names_devices_decides(told):
    mapped = decide("e", told)
    naming = sorted(ORDER.index(claim.how) for claim in told if claim.gpus)
    assert bool(mapped.gpus) == bool(naming)
    if naming:
        assert ORDER.index(mapped.how) == naming[0]


@given(st.lists(_claims, max_size=4), st.dictionaries(st.sampled_from(GPUS), st.integers(0, 3)))
def test_a_device_serves_exactly_the_engines_that_it_was_given_to(told, holders):
    """And several engines or holders make it shared; one alone never."""
    engines = [decide(f"e{n}", claims) for n, claims in enumerate(told)]
    named = {gpu: tuple(Holder("ns", f"pod-{n}") for n in range(count)) for gpu, count in holders.items()}
    found = put_together(GPUS, engines, named, {})
    for gpu, use in found.devices.items():
        assert [engine for engine, _ in use.engines] == [one.engine for one in engines if gpu in one.gpus]
        assert bool(use.sharing) == (max(len(use.engines), holders.get(gpu, 0)) > 1)
        if use.engines:
            assert use.is_known
        elif any(not one.gpus and gpu not in one.not_on for one in engines):
            assert not use.is_known, "an engine that may be there"
