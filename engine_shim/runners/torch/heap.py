"""Keeps the memory of a CPU step in the process: glibc would return large blocks to the kernel after each use.

A step's activations are megabytes that live for microseconds. By default glibc maps such a block anew or trims its
heap, and the next step pays a page fault for every 4 KiB of it: on a CPU that is a twentieth of a bf16 step, and nine
tenths of unpacking an int8 matrix. The price is a heap that stays as large as its largest step.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_KEPT_BYTES = 1 << 30  # blocks up to this size come from the heap, and so much free memory stays at its end


def keep_large_blocks() -> bool:
    """Whether the allocator was told; False where it is not glibc's."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)) and bool(mallopt(_MMAP_THRESHOLD, _KEPT_BYTES))
