"""The engine's telemetry: one writer, several shapes.

The engine calls step.Telemetry; `EngineTelemetry` passes each call to the parts that are switched on: the engine's own
page (metrics.py), vLLM's view of the same facts (vllm_page.py), spans (spans.py) and the step ring (ring.py).
In virtual time steps come in blocks (`steps`) instead of one by one; both ways book the same numbers.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ..request import Request, Stage
from .classes import ClassMetrics
from .exposition import Family
from .info import EngineInfo
from .live import LiveRequests
from .metrics import EngineMetrics
from .ring import RingWriter
from .spans import SpanWriter, traces_url
from .vllm_page import VllmMetrics

__all__ = ["EngineInfo", "EngineTelemetry", "LiveRequests", "build_telemetry"]

_BLOCK_STEPS = 256  # step records kept for the pages before they are booked


class EngineTelemetry:
    """Implements step.Telemetry. The engine's thread writes; any thread may render a page."""

    def __init__(
        self,
        info: EngineInfo,
        live: LiveRequests,
        now: Callable[[], float],
        *,
        ring: RingWriter | None = None,
        spans: SpanWriter | None = None,
        vllm: bool = False,
    ) -> None:
        self.info = info
        self.live = live
        self.ring = ring
        self._now = now
        self._spans = spans
        self._with_vllm = vllm
        self._lock = threading.Lock()
        self._pending: list[list[float]] = []
        self._extra: list[Family] = [] if spans is None else spans.families()
        self._vllm_extra: list[Family] = []
        self._open_pages()

    def add_families(self, families: Sequence[Family], vllm: Sequence[Family] = ()) -> None:
        """Show more on the engine's page, before anything has happened: what other parts of the engine say.

        `vllm` is what of it vLLM shows, under its names.
        """
        self._extra += families
        self._vllm_extra += vllm
        self._open_pages()

    def step_begun(self, record: list[float]) -> None:
        """See step.Telemetry."""
        if self.ring is not None:
            self.ring.step_begun(record)

    def step_ended(self, record: list[float]) -> None:
        """See step.Telemetry."""
        if self.ring is not None:
            self.ring.step_ended(record)
        with self._lock:
            self._pending.append(record.copy())
            if len(self._pending) >= _BLOCK_STEPS:
                self._book_pending()

    def steps(self, columns: dict[str, np.ndarray]) -> None:
        """Completed steps as columns of the info's step fields, oldest first: what `step_ended` is in virtual time."""
        if not len(columns["step"]):
            return
        self.metrics.steps(columns)
        if self.vllm is not None:
            self.vllm.steps(columns)

    def stage_changed(self, request: Request, stage: Stage, now: float) -> None:
        """See step.Telemetry."""
        with self._lock:
            self.live.stage_changed(request, stage)
            self.metrics.stage_changed(request, stage, now)
            if self._classes is not None:
                self._classes.stage_changed(request, stage, now)
            if self.vllm is not None:
                self.vllm.stage_changed(request, stage, now)

    def finished(self, request: Request) -> None:
        """See step.Telemetry."""
        if self._spans is not None:
            self._spans.finished(request)
        with self._lock:
            self.metrics.finished(request)
            if self._classes is not None:
                self._classes.finished(request)
            if self.vllm is not None:
                self.vllm.finished(request)
            self.live.finished(request)

    def render(self, names: Sequence[str] | None = None) -> bytes:
        """The engine's page; with vLLM's names where that was asked for. `names` filters as `?name[]=` does."""
        with self._lock:
            self._book_pending()
            page = self.metrics if self.vllm is None else self.vllm
            return page.render(names)

    def tick(self, now: float) -> None:
        """Renew the request table between steps. The server calls it now and then; not needed while steps run."""
        if self.ring is not None:
            with self._lock:
                self.ring.write_table(now)

    def restarted(self, started_at: float) -> None:
        """A new life of the engine: counters begin at zero, nothing is in flight."""
        with self._lock:
            self._pending = []
            self.live.clear()
            self.info = replace(self.info, started_at=started_at)
            self._open_pages()

    def close(self) -> None:
        """Flush spans and unmap the ring (its file stays)."""
        if self._spans is not None:
            self._spans.close()
        if self.ring is not None:
            self.ring.close()

    def _open_pages(self) -> None:
        by_class = self.info.arguments.get("scheduling") == "priority"
        self._classes = ClassMetrics(self.live, self._now) if by_class else None
        extra = [*self._extra, *(self._classes.families() if self._classes is not None else ())]
        self.metrics = EngineMetrics(self.info, self.live, self._now, extra)
        self.vllm = VllmMetrics(self.info, self.live, self._vllm_extra) if self._with_vllm else None

    def _book_pending(self) -> None:
        if not self._pending:
            return
        records, self._pending = self._pending, []
        columns = np.array(records).T
        self.steps(dict(zip(self.info.step_fields, columns, strict=True)))


def build_telemetry(
    info: EngineInfo,
    now: Callable[[], float],
    *,
    salt: bytes | None = None,
    ring_dir: str | None = None,
    ring: bool = False,
    monotonic_ns: int = 0,
    otlp_endpoint: str | None = None,
    vllm: bool = False,
) -> EngineTelemetry:
    """Telemetry for one engine.

    `ring` (or a `ring_dir`) opens a step ring; OSError if its directory cannot be written. Spans are sent when
    `otlp_endpoint` or OTEL_EXPORTER_OTLP_ENDPOINT names a receiver. `vllm` shows the page under vLLM's names.
    `salt` makes request hashes reproducible; without it they are good for this process only.
    """
    live = LiveRequests(salt or secrets.token_bytes(16))
    writer = None
    if ring or ring_dir:
        unix_ns = round(now() * 1e6) * 1000
        writer = RingWriter(info, live, ring_dir, unix_ns=unix_ns, monotonic_ns=monotonic_ns)
    url = traces_url(otlp_endpoint)
    spans = SpanWriter(info, live, url) if url else None
    return EngineTelemetry(info, live, now, ring=writer, spans=spans, vllm=vllm)
