"""The modelled device in real time: what its monitor would have read, as a dcgm-exporter page.

The engine's thread notes each step; whoever asks for the page closes the window since the last reading, at most once in
`EVERY_S`. Readings are means over that window, idle time included, as a real exporter's sampling shows them.
"""

from __future__ import annotations

import threading
from collections import deque
from uuid import UUID, uuid5

import numpy as np

from engine_shim.clock import Clock
from engine_shim.devices.state import DeviceState
from engine_shim.faults.live.faults import LiveFaults
from engine_shim.faults.view import FaultView
from engine_shim.runners.modelled.device_window import DeviceWindow
from engine_shim.runners.modelled.runner import ModelRunner
from engine_shim.settings.engine import EngineSettings
from engine_shim.step import Runner, StepPlan
from engine_shim.telemetry.gpu_page import Gpu, GpuPage

EVERY_S = 1.0
# A page that nobody reads must not fill the memory: older steps are forgotten, about ten minutes of decoding.
MAX_STEPS = 65_536
_GPUS = UUID("6f0f9c3e-9a53-4c39-8d4c-3c1f0c8d7b11")


def gpu_uuid(engine: str, rank: int) -> str:
    """The UUID of the modelled device of an engine: the same after a restart."""
    return f"GPU-{uuid5(_GPUS, f'{engine}/{rank}')}"


class LiveGpu:
    """A runner around the paced one that notes each step, and the page of what was noted."""

    def __init__(
        self,
        inner: Runner,
        model: ModelRunner,
        settings: EngineSettings,
        pool_tokens: int,
        uuid: str,
        clock: Clock,
        faults: LiveFaults,
    ) -> None:
        self._inner, self._model, self._clock, self._faults = inner, model, clock, faults
        self._window = DeviceWindow(model.device, settings, pool_tokens, clock.now())
        self._page = GpuPage(Gpu(uuid, model.device.product))
        self._due = clock.now()
        self._steps: deque[tuple[float, float, tuple[float, ...]]] = deque(maxlen=MAX_STEPS)
        self._begun: float | None = None
        self._lock = threading.Lock()

    def run(self, plan: StepPlan) -> tuple[list[int], float]:
        """Run the step inside and note its work."""
        begun = self._begun = self._clock.now()
        tokens, seconds = self._inner.run(plan)
        with self._lock:
            self._steps.append((begun, self._clock.now(), self._model.work))
            self._begun = None
        return tokens, seconds

    def set_state(self, state: DeviceState) -> None:
        """The device's condition from now on."""
        self._model.set_state(state)

    def render(self) -> bytes:
        """The page; its readings are at most `EVERY_S` old."""
        now = self._clock.now()
        if now >= self._due:
            self._due = now + EVERY_S
            view = FaultView(self._faults.current)
            self._page.update(now, view.of_gpu(0, self._close(now), now, self._model.state))
        return self._page.render()

    def _close(self, now: float) -> dict[str, float]:
        with self._lock:
            steps, begun, work = list(self._steps), self._begun, self._model.work
            self._steps.clear()
        if steps:
            begun_at, ended_at = (np.array([step[i] for step in steps]) for i in (0, 1))
            readings = self._model.readings(np.array([step[2] for step in steps]), ended_at - begun_at)
            self._window.steps(begun_at, ended_at, readings)
        busy = self._open_readings(now, work) if begun is not None else {}
        return self._window.close(now, begun, busy, self._model.idle_readings(), up=True)

    def _open_readings(self, now: float, work: tuple[float, ...]) -> dict[str, float]:
        if self._faults.current.speed(now) == 0:
            return self._model.hung_readings()
        busy_s = np.array([max(work[-1], 1e-9)])
        return {name: float(value[0]) for name, value in self._model.readings(np.array([work]), busy_s).items()}
