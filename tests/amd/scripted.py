"""An amdsmi that answers from a script: a module's functions, its enumerations, and its exception."""

from enum import IntEnum
from typing import Any


class AmdSmiLibraryException(Exception):  # noqa: N818
    """What amdsmi raises."""

    def __init__(self, code: int):
        super().__init__(code)
        self.err_code = code


class AmdSmiClkType(IntEnum):
    GFX = 0
    MEM = 4


class AmdSmiTemperatureType(IntEnum):
    EDGE = 0
    HOTSPOT = 1
    VRAM = 2


class AmdSmiTemperatureMetric(IntEnum):
    CURRENT = 0


class AmdSmiMemoryType(IntEnum):
    VRAM = 0


def mi300x(**more: Any) -> dict[str, Any]:
    """An MI300X at work, in the shapes that amdsmi 7 answers. Temperature of the edge is not told there."""
    return {
        "amdsmi_get_gpu_device_uuid": "21ff74a1-0000-1000-80e9-aa6d4a2b8e70",
        "amdsmi_get_gpu_device_bdf": "0000:0c:00.0",
        "amdsmi_get_gpu_asic_info": {"market_name": "AMD Instinct MI300X", "target_graphics_version": "gfx942"},
        "amdsmi_get_gpu_driver_info": {"driver_name": "amdgpu", "driver_version": "6.12.12"},
        "amdsmi_get_gpu_vram_info": {"vram_type": 1, "vram_max_bandwidth": 5300},
        "amdsmi_get_gpu_activity": {"gfx_activity": 96, "umc_activity": 41, "mm_activity": "N/A"},
        "amdsmi_get_gpu_vram_usage": {"vram_total": 196592, "vram_used": 150000},
        "amdsmi_get_power_info": {
            "socket_power": 690, "current_socket_power": 690, "average_socket_power": "N/A", "power_limit": 750,
        },
        "amdsmi_get_clock_info": {
            0: {"clk": 1930, "min_clk": 500, "max_clk": 2100}, 4: {"clk": 1300, "max_clk": 1300},
        },
        "amdsmi_get_temp_metric": {1: 71, 2: 60},
        "amdsmi_get_energy_count": {"energy_accumulator": 1_000_000, "counter_resolution": 15.3, "timestamp": 1},
        "amdsmi_get_gpu_total_ecc_count": {"correctable_count": 4, "uncorrectable_count": 0, "deferred_count": 0},
        "amdsmi_get_pcie_info": {"pcie_metric": {"pcie_width": 16, "pcie_replay_count": 2}, "pcie_static": {}},
        "amdsmi_get_gpu_process_list": [
            {"name": "python3", "pid": 4242, "memory_usage": {"vram_mem": 150 << 30}, "cu_occupancy": "N/A"},
        ],
        "amdsmi_get_violation_status": {
            "acc_counter": 1000, "acc_ppt_pwr": 100, "acc_socket_thrm": 0, "acc_hbm_thrm": 0, "acc_vr_thrm": 0,
            "acc_prochot_thrm": 0,
        },
    } | more  # fmt: skip


class ScriptedAmdsmi:
    """The module. `devices` are scripts; an exception as an answer is raised, a dictionary by number is by argument."""

    AmdSmiLibraryException = AmdSmiLibraryException
    AmdSmiClkType = AmdSmiClkType
    AmdSmiTemperatureType = AmdSmiTemperatureType
    AmdSmiTemperatureMetric = AmdSmiTemperatureMetric
    AmdSmiMemoryType = AmdSmiMemoryType

    def __init__(self, *devices: dict[str, Any]):
        self.devices = list(devices)
        self.calls: list[str] = []
        self.start: Exception | None = None

    def amdsmi_init(self):
        if self.start:
            raise self.start

    def amdsmi_shut_down(self):
        self.calls.append("amdsmi_shut_down")

    def amdsmi_get_processor_handles(self):
        return list(range(len(self.devices)))

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("amdsmi_"):
            raise AttributeError(name)

        def call(handle: int, *arguments: Any) -> Any:
            self.calls.append(name)
            answer = self.devices[handle].get(name, AmdSmiLibraryException(2))
            if isinstance(answer, dict) and arguments and all(isinstance(key, int) for key in answer):
                answer = answer.get(int(arguments[0]), AmdSmiLibraryException(2))
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call
