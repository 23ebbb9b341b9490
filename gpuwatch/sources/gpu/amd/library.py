"""amdsmi: imported when it is wanted, for the import itself fails without ROCm's library. Refused calls are remembered."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .. import peaks
from ..nvml.facts import clean
from ..nvml.processes import MOST, GpuProcess
from ..vendor import Device, DeviceLostError, Values, VendorError
from .calls import CALLS, FACTS, Call, number, picked
from .throttling import Violations

_REFUSALS = frozenset({2, 3, 5, 10, 55})
"""Not supported, not implemented, no such symbol, no permission, no such setting."""
_NO_PERMISSION = 10
_CLOSED = frozenset({32, 34})
"""Not initialised; the driver is not loaded."""
_LOST = frozenset({31, 54})
"""Not found; being restarted."""
_VIOLATIONS = "amdsmi_get_violation_status"
_PROCESSES = "amdsmi_get_gpu_process_list"
_ENERGY = "amdsmi_get_energy_count"


def is_there(root: Path = Path("/")) -> bool:
    """Whether amdsmi is installed and the kernel has AMD's compute driver."""
    return (root / "dev" / "kfd").exists() and importlib.util.find_spec("amdsmi") is not None


class AmdLibrary:
    """Starts amdsmi and finds the devices. `load` imports the module."""

    def __init__(self, load: Callable[[], Any] = lambda: importlib.import_module("amdsmi")) -> None:
        self._load = load
        self._module: Any = None

    def open(self) -> list[Device]:
        """Raises VendorError, whatever the import or the start raise."""
        try:
            self._module = self._load()
            self._module.amdsmi_init()
            handles = self._module.amdsmi_get_processor_handles()
        except BaseException as error:  # the import ends the interpreter in some releases
            if isinstance(error, KeyboardInterrupt):
                raise
            raise VendorError(f"amdsmi does not start: {type(error).__name__}: {error}"[:200]) from None
        found: list[Device] = []
        for index, handle in enumerate(handles):
            try:
                found.append(AmdDevice(self._module, handle, index))
            except DeviceLostError:
                continue  # the others are there
        return found

    def close(self) -> None:
        """Stop it."""
        if self._module is not None:
            try:
                self._module.amdsmi_shut_down()
            except Exception:
                self._module = None  # it was not running


class AmdDevice:
    """One device by its handle."""

    def __init__(self, module: Any, handle: Any, index: int) -> None:
        self._module = module
        self._handle = handle
        self._index = index
        self._calls = [(call, _arguments(module, call)) for call in CALLS]
        self._violations = Violations()
        self._facts: dict[str, str] = {}
        self.refused: dict[str, int] = {}
        self.processes: tuple[GpuProcess, ...] = ()
        uuid = clean(self._text("amdsmi_get_gpu_device_uuid"))
        self.uuid = uuid or clean(self._text("amdsmi_get_gpu_device_bdf")) or f"amd-{index}"

    def facts(self) -> Mapping[str, str]:
        """What the device is, with what it would not say."""
        if not self._facts:
            self._facts = self._ask_facts()
        denied = sorted(call for call, code in self.refused.items() if code == _NO_PERMISSION)
        missing = sorted(call for call, code in self.refused.items() if code != _NO_PERMISSION)
        notes = {"no_permission": ", ".join(denied)[:250], "not_supported": ", ".join(missing)[:250]}
        return self._facts | {key: value for key, value in notes.items() if value}

    def read(self, at: float, slow: bool) -> Values:
        """Readings of a lane. Raises DeviceLostError or VendorError."""
        values: Values = {}
        for call, arguments in self._calls:
            if (call.lane == "slow") != slow or arguments is None:
                continue
            if all(pick.signal in values for pick in call.picks):
                continue
            answer = self._ask(call.name, *arguments)
            for pick in call.picks:
                value = picked(answer, pick)
                if value == value:
                    values.setdefault(pick.signal, value)
        if slow:
            values |= self._violations.shares(self._ask(_VIOLATIONS))
            self._list_processes(values)
        else:
            energy = self._ask(_ENERGY)  # in counts of so many microjoules each
            values["gpu_energy_joules_total"] = (
                _first(energy, "energy_accumulator", "power") * number(energy, "counter_resolution") * 1e-6
            )
        return {signal: value for signal, value in values.items() if value == value}

    def _list_processes(self, values: Values) -> None:
        listed = self._ask(_PROCESSES)
        if not isinstance(listed, list):
            return
        values["gpu_processes"] = float(len(listed))
        self.processes = tuple(
            GpuProcess(int(number(one, "pid")), number(one, "memory_usage.vram_mem"))
            for one in listed[:MOST]
            if number(one, "pid") == number(one, "pid")
        )

    def _ask(self, call: str, *arguments: Any) -> Any:
        """An answer, None where there is none now. A refusal is remembered with its arguments."""
        key = call if not arguments else f"{call}({', '.join(str(getattr(a, 'name', a)) for a in arguments)})"
        if key in self.refused:
            return None
        try:
            return getattr(self._module, call)(self._handle, *arguments)
        except AttributeError:
            self.refused[key] = 5
        except Exception as error:
            code = getattr(error, "err_code", None)
            if code in _LOST:
                raise DeviceLostError(f"{call}: error {code}") from None
            if code in _CLOSED:
                raise VendorError(f"amdsmi is lost: {call}: error {code}") from None
            if code in _REFUSALS:
                self.refused[key] = int(code)
        return None

    def _ask_facts(self) -> dict[str, str]:
        found = {"index": str(self._index), "vendor": "AMD"}
        for call, facts in FACTS.items():
            answer = self._ask(call)
            for key, fact in facts:
                said = answer.get(key) if key and isinstance(answer, dict) else answer if not key else None
                if said not in (None, "", "N/A"):
                    found[fact] = clean(said)
        bandwidth = _as_number(found.pop("vram_max_bandwidth_gb_per_second", "")) * peaks.GB
        total = picked(self._ask("amdsmi_get_gpu_vram_usage"), CALLS[1].picks[1])
        return found | peaks.facts(found.get("model", ""), total, bandwidth)

    def _text(self, call: str) -> str:
        answer = self._ask(call)
        return answer if isinstance(answer, str) and answer != "N/A" else ""


def _arguments(module: Any, call: Call) -> tuple[Any, ...] | None:
    """The call's arguments; None where this release does not know one of them."""
    found = []
    for name in call.arguments:
        value: Any = module
        for part in name.split("."):
            value = getattr(value, part, None)
        if value is None:
            return None
        found.append(value)
    return tuple(found)


def _first(answer: Any, *keys: str) -> float:
    return next((value for key in keys if (value := number(answer, key)) == value), math.nan)


def _as_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
