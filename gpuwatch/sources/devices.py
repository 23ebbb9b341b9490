"""Which drivers are asked: those that the configuration names, and those whose library can be loaded here.

Nothing of a vendor is imported before its library is known to be there.
"""

from __future__ import annotations

from ..config import Gpu
from .poll import Clock, Source


def device_sources(settings: Gpu, clock: Clock, host: str, hertz: float) -> list[Source]:
    """A source for each vendor that is wanted. `hertz`: how often the fast readings are taken."""
    sources: list[Source] = []
    if settings.nvml is True or (settings.nvml == "auto" and _has_nvml()):
        from .nvml import NvmlSource
        from .nvml.pace import Rates

        rates = Rates(settings.usage_hz, settings.slow_every_s, settings.processes_every_s)
        sources.append(NvmlSource(clock, host, hertz, rates))
    return sources


def _has_nvml() -> bool:
    from .nvml.library import is_there

    return is_there()
