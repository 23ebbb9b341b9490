"""The map is data: the pipeline judges by it, a recording holds it, and what is shared or unknown is blind."""

import asyncio

import numpy as np
import pytest

from gpuwatch.config import Config, EngineTarget
from gpuwatch.model import Batch, Frame, Info, Missing, Subject
from gpuwatch.pipeline import Pipeline
from gpuwatch.recording.codec import Encoder, decode_calls
from gpuwatch.sources.gpu import device_map
from gpuwatch.sources.gpu.ownership.clues import Pid
from tests.ownership.proc_tree import ProcTree, on
from tests.ownership.test_mapping import GPUS, VLLM, source_of

ENGINES = [Subject(engine=name) for name in ("vllm", "sglang")]
DEVICES = [Subject(gpu=uuid) for uuid in GPUS[:2]]
DRAM = (0.8, 0.1)


def second(t, engines=ENGINES, devices=DEVICES):
    """One second of engines that run and of devices that are busy, each in its own way."""
    frames = [Frame(e, "page", ("req_running",), np.array([t]), np.array([[4.0]])) for e in engines]
    for device, dram in zip(devices, DRAM, strict=False):
        names = ("gpu_dram_active_ratio", "gpu_tensor_active_ratio", "gpu_temperature_celsius")
        frames.append(Frame(device, "nvml", names, np.array([t]), np.array([[dram, 0.05, 60.0 + 10 * dram]])))
    return Batch("world", "engine", engines[0], t, frames=tuple(frames))


def mapped(device, *engines, sharing="", known=True, t=1000.0):
    told = device_map.labels([(name, "kubelet") for name in engines], sharing, known=known)
    return Info(device, t, told)


def play(*info, config=None, engines=ENGINES, devices=DEVICES, pipeline=None, start=1000):
    pipeline = pipeline or Pipeline(config or Config())
    for t in range(start, start + 20):
        batches = [second(float(t), engines, devices)]
        if t == start:
            batches.append(Batch("ownership", "ownership", Subject(host="node7"), float(t), info=info))
        pipeline.step(float(t), batches)
    return pipeline


def dram(pipeline, engine=ENGINES[0]):
    return round(pipeline.window(engine).gpu_mean("gpu_dram_active_ratio", 10), 6)


def test_each_engine_is_judged_by_its_own_device():
    pipeline = play(mapped(DEVICES[0], "vllm"), mapped(DEVICES[1], "sglang"))
    assert (dram(pipeline), dram(pipeline, ENGINES[1])) == (0.8, 0.1)
    assert [pipeline.states[e.key].gpu.mode for e in ENGINES] == ["bandwidth-bound", "waiting"]


def test_a_device_that_nobody_mapped_is_blind_and_in_no_mean():
    """Not a neighbour's load, not half of a mean."""
    pipeline = play(mapped(DEVICES[0], "vllm"), mapped(DEVICES[1], known=False))
    assert dram(pipeline) == 0.8
    with pytest.raises(Missing, match="known to serve"):
        dram(pipeline, ENGINES[1])
    assert pipeline.states[ENGINES[1].key].gpu.mode == "unknown"


def test_tensor_parallel_ranks_are_a_mean_over_their_devices():
    pipeline = play(mapped(DEVICES[0], "vllm"), mapped(DEVICES[1], "vllm"))
    assert dram(pipeline) == 0.45


def test_a_shared_devices_activity_is_nobodys_and_its_heat_is_everybodys():
    pipeline = play(mapped(DEVICES[0], "vllm", "sglang", sharing="time_slicing"), mapped(DEVICES[1]))
    with pytest.raises(Missing, match="shared"):
        dram(pipeline)
    assert pipeline.window(ENGINES[0]).gpu_mean("gpu_temperature_celsius", 10) == 68
    assert pipeline.states[ENGINES[0].key].gpu.mode == "unknown"


def test_a_lone_engine_with_a_lone_device_needs_no_map():
    assert dram(play(engines=ENGINES[:1], devices=DEVICES[:1])) == 0.8
    unknown = mapped(DEVICES[0], known=False)
    assert dram(play(unknown, engines=ENGINES[:1], devices=DEVICES[:1])) == 0.8


def test_a_lone_device_that_is_known_to_be_anothers_is_not_the_lone_engines():
    pipeline = play(mapped(DEVICES[0]), engines=ENGINES[:1], devices=DEVICES[:1])
    with pytest.raises(Missing):
        dram(pipeline)


def test_the_configuration_needs_no_source():
    config = Config(engines=(EngineTarget("http://x", "vllm", gpus=(GPUS[1],)),))
    assert dram(play(config=config)) == 0.1


def test_an_engine_that_moves_takes_its_old_device_back():
    """Slots that were told before are emptied: facts are only ever added to."""
    pipeline = play(mapped(DEVICES[0], "vllm", "sglang"), mapped(DEVICES[1]))
    now = device_map.labels([("sglang", "processes")], "", known=True, slots=2)
    pipeline = play(Info(DEVICES[0], 1020.0, now), mapped(DEVICES[1], "vllm"), pipeline=pipeline, start=1020)
    assert (dram(pipeline), dram(pipeline, ENGINES[1])) == (0.1, 0.8)


def test_a_snapshot_and_a_recording_hold_the_map():
    """Restored or replayed, the engine has its device."""
    info = (mapped(DEVICES[0], "vllm"), mapped(DEVICES[1], "sglang"))
    pipeline = Pipeline.restore(Config(), play(*info).snapshot())
    assert dram(play(pipeline=pipeline, start=1020)) == 0.8
    batch = Batch("ownership", "ownership", Subject(host="node7"), 1000.0, info=info)
    ((_, (again,)),) = decode_calls([Encoder().encode(1000.0, [batch])])
    assert again.info == batch.info


def test_the_source_tells_changes_at_once_and_everything_once_a_minute(tmp_path):
    proc = ProcTree(tmp_path / "proc")
    proc.add(100)
    lists = {GPUS[0]: on(100), GPUS[1]: on()}
    source = source_of((VLLM,), proc.root, lists=lists, pids={"vllm": Pid(100, "config")})

    async def main():
        told = []
        for t in (1000.0, 1005.0, 1010.0, 1015.0, 1061.0):
            source._clock.t = t
            if t == 1010.0:
                lists[GPUS[0]], lists[GPUS[1]] = on(), on(100)
            batch = await source.poll(t)
            told.append([GPUS.index(one.subject.gpu) for one in batch.info])
        return told, batch

    told, batch = asyncio.run(main())
    assert told == [[0, 1, 2, 3], [], [0, 1], [], [0, 1, 2, 3]]
    assert {one.subject.gpu: device_map.engines_of(one.labels) for one in batch.info} == {
        GPUS[0]: (), GPUS[1]: ("vllm",), GPUS[2]: (), GPUS[3]: ()
    }  # fmt: skip


def test_short_evidence_is_judged_by_the_map_too():
    """A recording that says whose device it is: the neighbour's is not the engine's."""
    from gpuwatch.clues.sighting import gather

    info = (mapped(DEVICES[0], "vllm"), mapped(DEVICES[1]))
    ownership = Batch("ownership", "ownership", Subject(host="node7"), 1000.0, info=info)
    seen = gather([(1000.0, (second(1000.0, ENGINES[:1]), ownership))])
    assert [g.subject for g in seen.gpus_of(seen.engines[0])] == DEVICES[:1]
    bare = gather([(1000.0, (second(1000.0, ENGINES[:1]),))])
    assert [g.subject for g in bare.gpus_of(bare.engines[0])] == DEVICES
