"""An NVML that answers from a script, under the real nvidia-ml-py: a Python object in the place of the loaded library.

Functions carry the C symbols' names and write through the pointers that the binding hands them, as the driver would.
What a script does not mention is not supported. A value that is a `Code` is the call's error; a function is called with
nothing and its result taken, which lets a test block, count or change its mind.
"""

import ctypes
import threading
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

import pynvml

NOT_SUPPORTED, INSUFFICIENT_SIZE, TIMEOUT = 3, 7, 10
DOUBLE, UINT, ULONG, ULONGLONG, LONGLONG, INT = range(6)
GIB = 1024**3
MIB = 1024**2


class Code(int):
    """An nvmlReturn_t that is an error."""


@dataclass
class Scripted:
    """One device. `answers` by C symbol; `fields` by id, or (id, scope); `gpm` by metric id."""

    uuid: Any = "GPU-a"
    answers: dict[str, Any] = field(default_factory=dict)
    fields: dict[Any, Any] = field(default_factory=dict)
    gpm: dict[int, Any] | None = None
    mig: dict[int, "Scripted"] | None = None
    instance: int = 0
    lost: int = 0  # the error of every call
    processes: list[tuple[int, int | None]] | None = None
    utilisation: list[tuple[int, int, int]] | Code | None = None  # (pid, time in µs, SM %)
    events: Any = 0xC50A  # supported event types
    address: Any = None

    def __post_init__(self):
        self.address = ctypes.create_string_buffer(16)


def hopper(uuid: str = "GPU-a", **more: Any) -> Scripted:
    """An H100 at work, by every call that a current driver has."""
    return Scripted(
        uuid,
        answers={
            "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3", "nvmlDeviceGetArchitecture": 9,
            "nvmlDeviceGetClockInfo": {0: 1755, 1: 1755, 2: 2619}, "nvmlDeviceGetMaxClockInfo": {1: 1980, 2: 2619},
            "nvmlDeviceGetMemoryBusWidth": 5120, "nvmlDeviceGetPowerUsage": 572_000,
            "nvmlDeviceGetEnforcedPowerLimit": 700_000, "nvmlDeviceGetTotalEnergyConsumption": 918_273_000,
            "nvmlDeviceGetTemperature": 61, "nvmlDeviceGetUtilizationRates": (97, 61),
            "nvmlDeviceGetMemoryInfo": (80 * GIB, 8 * GIB, 72 * GIB),
            "nvmlDeviceGetMemoryInfo_v2": (80 * GIB, 1 * GIB, 8 * GIB, 71 * GIB),
            "nvmlDeviceGetBAR1MemoryInfo": (128 * GIB, 127 * GIB, 1 * GIB), "nvmlDeviceGetRemappedRows": (2, 1, 1, 0),
            "nvmlDeviceGetTotalEccErrors": {0: 7, 1: 0}, "nvmlDeviceGetCurrPcieLinkGeneration": 5,
            "nvmlDeviceGetCurrPcieLinkWidth": 16, "nvmlDeviceGetPcieReplayCounter": 3,
            "nvmlDeviceGetTemperatureThreshold": {0: 92, 1: 89}, "nvmlDeviceGetEccMode": (1, 1),
            "nvmlDeviceGetMigMode": (0, 0),
        },
        fields={
            74: 0, 76: 0, 269: 0, 270: 0, 271: 0, 82: (UINT, 70), 230: (UINT, 0), 197: 0, 198: 0,
            (138, 0xFFFFFFFF): 0, (139, 0xFFFFFFFF): 0,
        },
        gpm={1: 98.0, 2: 91.3, 3: 24.5, 5: 27.9, 10: 80.0, 20: 100.0, 21: 873.0, 60: 5000.0, 61: 4000.0},
        processes=[(4242, 70 * GIB)],
        **more,
    )  # fmt: skip


def ampere(uuid: str = "GPU-a", **more: Any) -> Scripted:
    """An A100 under an older driver: no GPM, no counters of slowdowns, the mask by its old name, memory without v2."""
    made = hopper(uuid, **more)
    made.gpm = None
    made.fields = {82: (UINT, 64)}
    for call in ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMigMode"):
        del made.answers[call]
    made.answers |= {
        "nvmlDeviceGetName": "NVIDIA A100-SXM4-80GB", "nvmlDeviceGetArchitecture": 7,
        "nvmlDeviceGetMemoryBusWidth": 5120, "nvmlDeviceGetMaxClockInfo": {1: 1410, 2: 1593},
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0x4 | 0x20,
    }  # fmt: skip
    return made


class ScriptedNvml:
    """The library. `gpus` by index (None: the index answers "GPU is lost"); `start` is what it answers to init."""

    def __init__(self, *gpus: Scripted | None):
        self.gpus: list[Scripted | None] = list(gpus)
        self.start = 0
        self.driver = "570.86.15"
        self.calls: Counter[str] = Counter()
        self.missing = {"nvmlDeviceGetTemperatureV"}  # symbols that this driver does not have
        self.started = 0
        self.waiting: deque[tuple[Scripted | None, int, int]] = deque()
        self.drained = threading.Event()
        self.samples: dict[int, tuple[Any, list[float]]] = {}
        self.taken = 0.0
        self.gate: dict[str, threading.Event] = {}  # symbol → it blocks until set
        self.entered = threading.Event()
        self.nvmlErrorString = lambda _code: b"scripted"

    def install(self, monkeypatch):
        """Put this in the place of the loaded library, for one test."""
        monkeypatch.setattr(pynvml, "nvmlLib", self)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return self

    def xid(self, gpu: Scripted | None, code: int, kind: int = 0x8) -> None:
        """An event for the next wait."""
        self.drained.clear()
        self.waiting.append((gpu, kind, code))

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or name in self.missing:
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls[name] += 1
            gate = self.gate.get(name)
            if gate is not None:
                self.entered.set()
                gate.wait(30)
            if self.started <= 0 and name != "nvmlInitWithFlags":
                return 1
            special = getattr(self, "_" + name, None) if not name.startswith("_") else None
            return special(*arguments) if special else self._of_device(name, *arguments)

        return call

    # --- the library -----------------------------------------------------------------------------------------------

    def _nvmlInitWithFlags(self, flags):  # noqa: N802
        if not self.start:
            self.started += 1
        return self.start

    def _nvmlShutdown(self):  # noqa: N802
        self.started -= 1
        return 0

    def _nvmlSystemGetDriverVersion(self, text, size):  # noqa: N802
        text.value = self.driver.encode()
        return 0

    def _nvmlDeviceGetCount_v2(self, count):  # noqa: N802
        count._obj.value = len(self.gpus)
        return 0

    def _nvmlDeviceGetHandleByIndex_v2(self, index, handle):  # noqa: N802
        position = getattr(index, "value", index)
        gpu = self.gpus[position] if position < len(self.gpus) else None
        if gpu is None:
            return 15
        _point(handle, gpu.address)
        return 0

    def _find(self, handle):
        where = ctypes.cast(handle, ctypes.c_void_p).value
        every = [gpu for gpu in self.gpus if gpu is not None]
        every += [part for gpu in every for part in (gpu.mig or {}).values()]
        return next((gpu for gpu in every if ctypes.addressof(gpu.address) == where), None)

    # --- a device --------------------------------------------------------------------------------------------------

    def _of_device(self, name, handle, *out):
        gpu = self._find(handle)
        if gpu is None:
            return 2
        if gpu.lost:
            return gpu.lost
        special = getattr(self, "_device_" + name.removeprefix("nvmlDevice"), None)
        if special is not None:
            return special(gpu, *out)
        answer = gpu.answers.get(name, Code(NOT_SUPPORTED))
        answer = answer() if callable(answer) else answer
        if isinstance(answer, Code):
            return int(answer)
        if isinstance(answer, dict):  # by the argument
            answer = answer.get(getattr(out[0], "value", out[0]), Code(NOT_SUPPORTED))
            out = out[-1:]
            if isinstance(answer, Code):
                return int(answer)
        return _write(answer, out)

    def _device_GetUUID(self, gpu, text, size):  # noqa: N802
        if isinstance(gpu.uuid, Code):
            return int(gpu.uuid)
        text.value = gpu.uuid.encode()
        return 0

    def _device_GetFieldValues(self, gpu, count, values):  # noqa: N802
        for slot in values._obj:
            answer = gpu.fields.get((slot.fieldId, slot.scopeId), gpu.fields.get(slot.fieldId, Code(NOT_SUPPORTED)))
            answer = answer() if callable(answer) else answer
            if isinstance(answer, Code):
                slot.nvmlReturn = int(answer)
                continue
            kind, value = answer if isinstance(answer, tuple) else (ULONGLONG, answer)
            slot.nvmlReturn, slot.valueType = 0, kind
            setattr(slot.value, ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal")[min(kind, 5)], value)
        return 0

    def _device_GetMaxMigDeviceCount(self, gpu, count):  # noqa: N802
        count._obj.value = 7
        return 0 if gpu.mig is not None else NOT_SUPPORTED

    def _device_GetMigDeviceHandleByIndex(self, gpu, index, handle):  # noqa: N802
        part = (gpu.mig or {}).get(index.value)
        if part is None:
            return 6
        _point(handle, part.address)
        return 0

    def _device_GetGpuInstanceId(self, gpu, number):  # noqa: N802
        number._obj.value = gpu.instance
        return 0

    def _device_GetComputeRunningProcesses_v3(self, gpu, count, listed):  # noqa: N802
        if gpu.processes is None:
            return NOT_SUPPORTED
        room, count._obj.value = count._obj.value, len(gpu.processes)
        if not gpu.processes:
            return 0
        if listed is None or room < len(gpu.processes):
            return INSUFFICIENT_SIZE
        for slot, (pid, held) in zip(listed, gpu.processes, strict=False):
            slot.pid, slot.usedGpuMemory = pid, 2**64 - 1 if held is None else held
            slot.gpuInstanceId = slot.computeInstanceId = 0xFFFFFFFF
        return 0

    def _device_GetProcessUtilization(self, gpu, samples, count, since):  # noqa: N802
        told = gpu.utilisation
        if told is None or isinstance(told, Code):
            return NOT_SUPPORTED if told is None else int(told)
        fresh = [one for one in told if one[1] > since.value]
        if not fresh:
            count._obj.value = 0
            return 0  # "success", of which the binding makes an error with the value 0
        if samples is None:
            count._obj.value = len(fresh)
            return INSUFFICIENT_SIZE
        for slot, (pid, at_us, share) in zip(samples, fresh, strict=False):
            slot.pid, slot.timeStamp, slot.smUtil = pid, at_us, share
        return 0

    # --- events ----------------------------------------------------------------------------------------------------

    def _nvmlEventSetCreate(self, events):  # noqa: N802
        self._set = ctypes.create_string_buffer(8)
        _point(events, self._set)
        return 0

    def _nvmlEventSetFree(self, events):  # noqa: N802
        return 0

    def _device_GetSupportedEventTypes(self, gpu, types):  # noqa: N802
        types._obj.value = gpu.events
        return 0

    def _device_RegisterEvents(self, gpu, mask, events):  # noqa: N802
        return 0 if gpu.events else NOT_SUPPORTED

    def _nvmlEventSetWait_v2(self, events, data, timeout):  # noqa: N802
        if not self.waiting:
            self.drained.set()
            return TIMEOUT
        gpu, kind, code = self.waiting.popleft()
        told = data._obj
        if gpu is not None:
            told.device = ctypes.cast(ctypes.addressof(gpu.address), type(told.device))
        told.eventType, told.eventData, told.gpuInstanceId, told.computeInstanceId = kind, code, 2**32 - 1, 2**32 - 1
        return 0

    # --- GPM -------------------------------------------------------------------------------------------------------

    def _nvmlGpmQueryDeviceSupport(self, handle, support):  # noqa: N802
        gpu = self._find(handle)
        if gpu is None or gpu.lost:
            return gpu.lost if gpu else 2
        answer = gpu.answers.get("nvmlGpmQueryDeviceSupport")
        if isinstance(answer, Code):
            return int(answer)
        support._obj.isSupportedDevice = int(gpu.gpm is not None)
        return 0

    def _nvmlGpmSampleAlloc(self, sample):  # noqa: N802
        buffer = ctypes.create_string_buffer(8)
        self.samples[ctypes.addressof(buffer)] = (buffer, [0.0, None])
        _point(sample, buffer)
        return 0

    def _nvmlGpmSampleFree(self, sample):  # noqa: N802
        del self.samples[ctypes.cast(sample, ctypes.c_void_p).value]
        return 0

    def _nvmlGpmSampleGet(self, handle, sample):  # noqa: N802
        gpu = self._find(handle)
        if gpu is None or gpu.lost:
            return gpu.lost if gpu else 2
        answer = gpu.answers.get("nvmlGpmSampleGet")
        if isinstance(answer, Code):
            return int(answer)
        self._take(sample, gpu)
        return 0

    def _nvmlGpmMigSampleGet(self, handle, instance, sample):  # noqa: N802
        board = self._find(handle)
        part = next((p for p in (board.mig or {}).values() if p.instance == instance), None)
        if part is None or part.gpm is None:
            return NOT_SUPPORTED
        self._take(sample, part)
        return 0

    def _take(self, sample, gpu):
        self.taken += 1
        self.samples[ctypes.cast(sample, ctypes.c_void_p).value][1][:] = [self.taken, gpu]

    def _nvmlGpmMetricsGet(self, request):  # noqa: N802
        told = request._obj
        if told.version != 1:
            return 25
        (older, _), (newer, gpu) = (
            self.samples[ctypes.cast(sample, ctypes.c_void_p).value][1] for sample in (told.sample1, told.sample2)
        )
        if not 0 < older < newer:
            return 2
        for i in range(told.numMetrics):
            metric = told.metrics[i]
            answer = gpu.gpm.get(metric.metricId, Code(NOT_SUPPORTED))
            metric.nvmlReturn = int(answer) if isinstance(answer, Code) else 0
            metric.value = 0.0 if isinstance(answer, Code) else answer
        return 0


def _point(out, buffer):
    """Write a buffer's address into the caller's pointer."""
    where = ctypes.c_void_p(ctypes.addressof(buffer))
    ctypes.memmove(ctypes.addressof(out._obj), ctypes.byref(where), ctypes.sizeof(where))


def _write(answer, out):
    """Write an answer into what the binding passed: a text buffer, a struct, or one number each."""
    if isinstance(answer, str | bytes):
        out[0].value = answer.encode() if isinstance(answer, str) else answer
        return 0
    values = answer if isinstance(answer, tuple) else (answer,)
    target = out[-1]._obj if len(values) == 1 or len(out) == 1 else None
    if target is not None and hasattr(target, "_fields_"):
        names = [name for name, *_ in target._fields_ if name != "version"]
        for name, value in zip(names, values, strict=False):
            setattr(target, name, value)
        return 0
    for pointer, value in zip(out[-len(values) :], values, strict=True):
        pointer._obj.value = value
    return 0
