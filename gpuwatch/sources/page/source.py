"""Looks at an engine's exposition page: often at a few names, sometimes at more, once a minute at everything.

Each poll is one GET (two where a filter is being tried). The whole page is read at the start, after a restart or
another change, and once a minute; between, the slow lane asks for gauges, counters and histograms, and the fast lane
for a handful. Where the engine honours no filter, whole pages are read as often as the cost budget allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import numpy as np

from ...config import Bounds, EngineTarget, Lanes
from ...model import Batch, Frame, Subject
from ...wire.exposition import Limits
from ...wire.http_get import Response, ScrapeClient, ScrapeError
from ..poll import Clock
from .engine_page import EnginePage, Lane, PageReport
from .iterations import is_list
from .page_filter import WHOLE_PAGE_PRICE, PageFilter, ScrapeCost

_REDIRECTS = (301, 302, 303, 307, 308)
_PATIENCE_S = 10.0  # an engine that answers between two steps of its work
_DRAINED_BY_READING = "/metrics", "/prometheus/metrics"
"""Where trtllm-serve shows its list of iterations, which each reader empties for the others, and where its page is."""


class EngineSource:
    """Polls one engine's page. `ring_is_live` says whether a step ring shows more than the fast lane could.

    `lives` grows whenever it may be another engine that answers: after a restart, and after a silence.
    """

    role = "engine"

    def __init__(
        self,
        target: EngineTarget,
        clock: Clock,
        client: ScrapeClient | None = None,
        lanes: Lanes | None = None,
        bounds: Bounds | None = None,
        ring_is_live: Callable[[], bool] = lambda: False,
    ) -> None:
        parts = urlsplit(target.url)
        lanes, bounds = lanes or Lanes(), bounds or Bounds()
        engine = target.name or parts.netloc
        self.name = f"page:{engine}"
        self.subject = Subject(engine=engine)
        self._clock = clock
        self._lanes = lanes
        self.patience_s = lanes.timeout_s
        self._client = client or ScrapeClient(f"{parts.scheme}://{parts.netloc}", lanes.timeout_s, bounds.page_bytes)
        self._path = parts.path if parts.path.strip("/") else "/metrics"
        self._filter = PageFilter(self._path)
        self._page = EnginePage(engine, target.dialect, Limits(page_bytes=bounds.page_bytes))
        self._ring_is_live = ring_is_live
        self._costs = {lane: ScrapeCost() for lane in ("whole", "slow", "fast")}
        self._seen: frozenset[str] = frozenset()
        self._whole_due = self._slow_due = -math.inf
        self.lives = 0
        self._silent = True

    @property
    def dialect(self) -> str:
        """Which engine it is; empty before its page has been read."""
        return self._page.dialect.name if self._page.dialect is not None else ""

    @property
    def interval_s(self) -> float:
        """Seconds until the next look: the fast lane's pace, or longer where that would cost the engine too much."""
        if self._filter.state == "no":
            dialect = self._page.dialect
            price = dialect.page.price if dialect else WHOLE_PAGE_PRICE
            return self._costs["whole"].interval_s(1 / self._lanes.fast_hz, price)
        hertz = self._lanes.fast_hz_with_ring if self._ring_is_live() else self._lanes.fast_hz
        return self._costs["fast"].interval_s(1 / hertz, longest_s=2.0)

    async def poll(self, now: float) -> Batch:
        """Ask once. A failure is a Batch with `error` that also says `scrape_up` = 0."""
        try:
            lane, response = await self._look(now)
            report = self._page.read(_ended(response), self._clock.now(), lane, _started(response.headers))
        except (ScrapeError, ValueError) as error:
            reason = f"{error.reason}: {error}" if isinstance(error, ScrapeError) else str(error)
            at = self._clock.now()
            self._silent = True
            self._whole_due = now  # whatever comes back may be another
            if isinstance(error, ScrapeError) and error.reason == "timeout" and self._page.dialect is None:
                self.patience_s = min(2 * self.patience_s, _PATIENCE_S)  # it may be one that is asked between steps
            return Batch(
                self.name, self.role, self.subject, at, error=reason[:300], frames=(self._up(at, math.nan, 0.0),)
            )
        self._plan(now, lane, report)
        at = self._clock.now()
        return Batch(
            self.name, self.role, self.subject, at, response.took_s,
            frames=(*report.frames, self._up(at, response.took_s, 1.0)),
            histograms=report.histograms, events=report.events, info=report.info, dropped=report.dropped,
        )  # fmt: skip

    async def aclose(self) -> None:
        """Close the connection."""
        await self._client.aclose()

    async def _look(self, now: float) -> tuple[Lane, Response]:
        """Choose a lane and fetch it."""
        self._filter.reconsider(now)
        if now >= self._whole_due or self._filter.state == "no":
            return "whole", await self._whole()
        if self._filter.state == "unknown":
            found = await self._try_filters(now)
            return ("fast", found) if found else ("whole", await self._whole())
        lane: Lane = "slow" if now >= self._slow_due else "fast"
        names = self._names(lane)
        response = await self._get(self._filter.target(names))
        if not response.body.strip() and self._seen.intersection(names):
            self._filter.refuse(now)  # multiprocess mode since a restart: an empty 200
            self._page.fast_apart = False
            return "whole", await self._whole()
        self._costs[lane].add(response.took_s)
        return lane, response

    async def _try_filters(self, now: float) -> Response | None:
        names = self._names("fast")
        for path in self._filter.candidates:
            try:
                response = await self._get(self._filter.target(names, path))
            except ScrapeError as error:
                if error.reason not in ("status", "protocol"):
                    raise
                continue
            if self._filter.judge(path, response.body, frozenset(names), self._seen):
                self._page.fast_apart = True
                self._costs["fast"].add(response.took_s)
                return response
        self._filter.refuse(now)
        self._page.fast_apart = False
        return None

    async def _whole(self) -> Response:
        try:
            response = await self._get(self._path)
        except _RedirectedError as moved:
            self._path = moved.path
            self._filter = PageFilter(self._path)
            response = await self._get(self._path)
        if self._path == _DRAINED_BY_READING[0] and is_list(response.body):
            self._path = _DRAINED_BY_READING[1]  # read once, unawares, and never again
            self._filter = PageFilter(self._path)
        self._costs["whole"].add(response.took_s)
        return response

    async def _get(self, target: str) -> Response:
        response = await self._client.get(target, self.patience_s)
        if response.status in _REDIRECTS:
            raise _RedirectedError(response.status, response.headers.get("location", ""))
        if response.status != 200:
            raise ScrapeError("status", f"HTTP {response.status}")
        return response

    def _names(self, lane: Lane) -> tuple[str, ...]:
        dialect = self._page.dialect
        assert dialect is not None  # a whole page has been read
        names = dialect.fast_names if lane == "fast" else dialect.slow_names
        return names(self._page.prefix, self._seen)

    def _plan(self, now: float, lane: Lane, report: PageReport) -> None:
        """When each lane is due again."""
        restarted = any(event.what == "restart" for event in report.events)
        self.lives += restarted or self._silent
        self._silent = False
        dialect = self._page.dialect
        if dialect is not None:
            self.patience_s = max(self._lanes.timeout_s, dialect.page.timeout_s)
        if lane == "whole":
            self._seen = report.names
            self._whole_due = now + self._lanes.whole_page_every_s if dialect is not None else now
        if lane != "fast":
            self._slow_due = now + 1 / self._lanes.slow_hz
        if restarted:
            self._filter.reconsider(now, restarted=True)
        if lane != "whole" and (restarted or report.look_again):
            self._whole_due = now

    def _up(self, at: float, took_s: float, up: float) -> Frame:
        source = "page-fast" if self._page.fast_apart else "page"
        return Frame(self.subject, source, ("scrape_seconds", "scrape_up"), np.array([at]), np.array([[took_s, up]]))


def _ended(response: Response) -> bytes:
    """The page with a line feed at its end where the answer says how long it is: then nothing was cut."""
    framed = "content-length" in response.headers or "transfer-encoding" in response.headers
    return response.body if not framed or response.body.endswith(b"\n") else response.body + b"\n"


def _started(headers: Mapping[str, str]) -> float:
    """When the process began, by a clock of its own, where an answer's header says it (llama.cpp); NaN elsewhere."""
    text = headers.get("process-start-time-unix", "")
    return float(text) / 1e6 if text.isascii() and text.isdigit() and len(text) < 20 else math.nan


class _RedirectedError(ScrapeError):
    """The page lies elsewhere on the same origin; `path` is where."""

    def __init__(self, status: int, location: str) -> None:
        parts = urlsplit(location)
        self.path = parts.path or "/"
        super().__init__("status", f"HTTP {status} to {location[:100]!r}")
