"""Counts the products that linear layers computed, by the kernel that ran: incremented where the call happens.

What was configured does not count. A layer that was asked for 4 bits and runs a dequantize and a dense product is
counted as what it ran.
"""

from __future__ import annotations

from collections import Counter


class KernelCalls:
    """Calls by kernel since the engine's start. Written by the thread that computes, read by any."""

    def __init__(self) -> None:
        self.by_kernel: Counter[str] = Counter()

    def restarted(self) -> None:
        """The engine begins a new life: counts begin at zero."""
        self.by_kernel.clear()
