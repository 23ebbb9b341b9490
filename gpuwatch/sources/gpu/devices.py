"""Which drivers are asked: those that the configuration names, and those whose library is there.

Nothing of a vendor is imported before its library is known to be there.
"""

from __future__ import annotations

from typing import Literal

from ...config import Gpu
from ..poll import Clock, Source


def device_sources(settings: Gpu, clock: Clock, host: str, hertz: float) -> list[Source]:
    """A source for each vendor that is wanted. `hertz`: how often the fast readings are taken."""
    sources: list[Source] = []
    if _wanted(settings.nvml, "nvml"):
        from .nvml import NvmlSource
        from .pace import Rates

        rates = Rates(settings.usage_hz, settings.slow_every_s, settings.processes_every_s)
        sources.append(NvmlSource(clock, host, hertz, rates))
    if _wanted(settings.amd, "amd"):
        from .amd import AmdLibrary
        from .vendor import VendorSource

        sources.append(VendorSource("amd", AmdLibrary(), clock, host, hertz, settings.slow_every_s))
    if _wanted(settings.intel, "intel"):
        from .intel import IntelLibrary
        from .vendor import VendorSource

        sources.append(VendorSource("intel", IntelLibrary(), clock, host, hertz, settings.slow_every_s))
    return sources


def _wanted(setting: bool | Literal["auto"], vendor: str) -> bool:
    return _is_there(vendor) if setting == "auto" else setting


def _is_there(vendor: str) -> bool:
    if vendor == "nvml":
        from .nvml.library import is_there
    elif vendor == "amd":
        from .amd import is_there
    else:
        from .intel import is_there
    return is_there()
