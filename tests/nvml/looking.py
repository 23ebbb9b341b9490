"""How tests look through an NvmlSource: one look a call, at a time that they choose."""

from gpuwatch.model import Subject
from gpuwatch.sources.gpu.nvml import NvmlSource
from gpuwatch.sources.gpu.pace import Rates
from tests.sources.stub_server import HandClock


class Looker:
    """A source on a hand clock. Looks are made in the test's own thread, except where a test polls."""

    def __init__(self, hertz: float = 1.0, rates: Rates | None = None, patience_s: float = 0.5):
        self.clock = HandClock(1000.0)
        self.source = NvmlSource(self.clock, "node7", hertz, rates, patience_s=patience_s)

    def look(self, after_s: float = 1.0):
        """Move on and look."""
        self.clock.t += after_s
        return self.source.look()

    def values(self, after_s: float = 1.0, gpu: str = "GPU-a", source: str = "") -> dict[str, float]:
        """Readings of a device in the next look."""
        return readings(self.look(after_s), gpu, source)

    def close(self):
        """Stop the library and its threads."""
        self.source._close()


def readings(said, gpu: str = "GPU-a", source: str = "") -> dict[str, float]:
    """Readings of a device, of one source of series or all."""
    return {
        name: value
        for frame in said.frames
        if frame.subject == Subject(gpu=gpu) and source in ("", frame.source)
        for name, value in zip(frame.names, frame.values[0], strict=True)
    }


def facts(said, gpu: str = "GPU-a") -> dict[str, str]:
    """What a device says of itself in this look."""
    return {key: value for info in said.info if info.subject == Subject(gpu=gpu) for key, value in info.labels.items()}


def events(said) -> list[tuple[str, str]]:
    """Events of this look as (subject, what)."""
    return [(event.subject.key, event.what) for event in said.events]
