"""How often lines of one kind come, and whether a gap between two of them is a pause."""

from __future__ import annotations

import statistics
from collections import deque

_GAPS = 7
_FIRST_PAUSE_S = 60.0


class Rhythm:
    """Learns from gaps in seconds. Before the first one, `usual_s` is what the engine's policy says."""

    def __init__(self, usual_s: float) -> None:
        self.usual_s = usual_s
        self._gaps: deque[float] = deque(maxlen=_GAPS)

    def is_pause(self, gap_s: float) -> bool:
        """Whether this gap is much longer than usual; lines of one second have no gap."""
        if not self._gaps:
            return gap_s > _FIRST_PAUSE_S
        return gap_s > max(4 * self.usual_s, self.usual_s + 4.0)

    def learn(self, gap_s: float) -> None:
        """Take a gap; a single pause does not change what is usual."""
        if gap_s > 0:
            self._gaps.append(gap_s)
            self.usual_s = statistics.median_low(self._gaps)
