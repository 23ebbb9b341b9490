"""A Level Zero Sysman that answers from a script, called through ctypes as the loader would be.

A device is a tree of parts; each part answers the calls that its script names, with a dictionary for a struct's fields, a
number, or a `Code`. What is not scripted is not supported.
"""

from typing import Any

UNSUPPORTED = 0x78000003


class Code(int):
    """A ze_result_t that is an error."""


LISTS = {
    "zesDeviceEnumEngineGroups": "engines", "zesDeviceEnumFrequencyDomains": "clocks",
    "zesDeviceEnumTemperatureSensors": "sensors", "zesDeviceEnumMemoryModules": "memories",
    "zesDeviceEnumPowerDomains": "power",
}  # fmt: skip


def flex(serial: int = 1) -> dict[str, Any]:
    """A card at work: one compute group, one memory of 16 GB, its clock held down by power for a while."""
    return {
        "zesDeviceGetProperties": {
            "core": {"uuid": bytes([serial] * 16), "name": b"Intel(R) Data Center GPU Max 1100"}, "driver": b"1.6.0",
        },
        "engines": [
            {"zesEngineGetProperties": {"type": 0}, "zesEngineGetActivity": {"count": 0, "at": 0}},
            {"zesEngineGetProperties": {"type": 1}, "zesEngineGetActivity": {"count": 0, "at": 0}},
        ],
        "clocks": [{
            "zesFrequencyGetProperties": {"type": 0, "max": 1550.0},
            "zesFrequencyGetState": {"actual": 1200.0, "reasons": 0x1},
            "zesFrequencyGetThrottleTime": {"count": 0, "at": 0},
        }],
        "memories": [{
            "zesMemoryGetProperties": {"location": 1},
            "zesMemoryGetState": {"free": 4 << 30, "size": 16 << 30},
            "zesMemoryGetBandwidth": {"read": 0, "written": 0, "peak": 1_200_000_000_000, "at": 0},
        }],
        "sensors": [
            {"zesTemperatureGetProperties": {"type": 1}, "zesTemperatureGetState": 66.0},
            {"zesTemperatureGetProperties": {"type": 2}, "zesTemperatureGetState": 58.0},
        ],
        "power": [{"zesPowerGetEnergyCounter": {"count": 0, "at": 0}}],
        "processes": [{"pid": 4242, "memory": 12 << 30}],
    }  # fmt: skip


def a_second_later(card: dict[str, Any], at_us: int) -> None:
    """Counters after a second in which it was 80 % busy, moved 600 GB, drew 250 W and was held down for 100 ms."""
    for engine in card["engines"]:
        engine["zesEngineGetActivity"] = {"count": int(at_us * 0.8), "at": at_us}
    memory = card["memories"][0]["zesMemoryGetBandwidth"]
    memory |= {"read": at_us * 400_000, "written": at_us * 200_000, "at": at_us}
    card["clocks"][0]["zesFrequencyGetThrottleTime"] = {"count": at_us // 10, "at": at_us}
    card["power"][0]["zesPowerGetEnergyCounter"] = {"count": at_us * 250, "at": at_us}


class ScriptedSysman:
    """The loaded library."""

    def __init__(self, *cards: dict[str, Any]):
        self.start = 0
        self.calls: list[str] = []
        self.cards = list(cards)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("zes"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls.append(name)
            return self._answer(name, *arguments)

        return call

    def _answer(self, name: str, *arguments: Any) -> int:
        if name == "zesInit":
            return self.start
        if name == "zesDriverGet":
            return _list([self], *arguments)
        handle, *out = arguments
        part = self._part(handle.value)
        if isinstance(part.get("lost"), Code):
            return int(part["lost"])
        if name == "zesDeviceGet":
            return _list(self.cards, *out)
        if name in LISTS:
            return _list(part.get(LISTS[name], []), *out)
        answer = part.get("processes" if name == "zesDeviceProcessesGetState" else name, Code(UNSUPPORTED))
        if isinstance(answer, Code):
            return int(answer)
        if isinstance(answer, list):
            return _processes(answer, *out)
        target = out[-1]._obj
        if isinstance(answer, float):
            target.value = answer
        else:
            assert target.stype if hasattr(target, "stype") else True
            _fill(target, answer)
        return 0

    def _part(self, where: int) -> Any:
        parts = [{}, *self.cards]
        for card in self.cards:
            parts += [part for kind in LISTS.values() for part in card.get(kind, [])]
        return next((part for part in parts if id(part) == where), {})


def _list(items, count, found):
    count = count._obj
    if found is None:
        count.value = len(items)
    else:
        for i, item in enumerate(items[: count.value]):
            found[i] = id(item)
    return 0


def _processes(items, count, found):
    count._obj.value = len(items)
    for slot, item in zip(found or (), items, strict=False):
        _fill(slot, item)
    return 0


def _fill(target, fields):
    for name, value in fields.items():
        if isinstance(value, dict):
            _fill(getattr(target, name), value)
        elif isinstance(value, bytes) and not isinstance(getattr(target, name), bytes):
            getattr(target, name)[:] = value
        else:
            setattr(target, name, value)
