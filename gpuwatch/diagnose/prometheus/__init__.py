"""`gpuwatch diagnose --prometheus`: what an existing Prometheus has scraped, put together again as the pages it was.

The raw samples of a target that carry one time stamp were one page: they are written as one and read as any page is, so
that dialects, counters, restarts and histograms mean the same here as live. Each replica of a pool is judged for itself
with the devices, the container and the node that are its own; the pool is then told as a whole.
"""

from .ask import Asked, ask_prometheus

__all__ = ["Asked", "ask_prometheus"]
