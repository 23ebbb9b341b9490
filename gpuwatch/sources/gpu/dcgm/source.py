"""Polls an exporter's page, one for all the engines that name it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from urllib.parse import urlsplit

from ....model import Batch, Subject
from ....wire.http_get import ScrapeClient, ScrapeError
from ...poll import Clock
from ..ownership.holder import Holder
from .page import DcgmPage


class DcgmSource:
    """Polls an exporter. `repeats` counts pages that said nothing new; `cut` what was seen and not read, by reason."""

    role = "gpu"

    def __init__(self, url: str, clock: Clock, client: ScrapeClient | None = None, hertz: float = 1.0) -> None:
        parts = urlsplit(url)
        host = parts.hostname or parts.netloc
        self.url = url
        path = parts.path if parts.path.strip("/") else "/metrics"
        self.name = f"dcgm:{parts.netloc}{path.removesuffix('/metrics')}"
        self.subject = Subject(host=host)
        self.interval_s = 1 / hertz
        self.repeats = 0
        self.cut: Counter[str] = Counter()
        self.page = DcgmPage(host=host)
        self._clock = clock
        self._client = client or ScrapeClient(f"{parts.scheme}://{parts.netloc}")
        self._target = f"{path}?{parts.query}" if parts.query else path
        self._unread: set[str] = set()

    async def poll(self, now: float) -> Batch:
        """Ask once. Raises ScrapeError."""
        response = await self._client.get(self._target)
        if response.status != 200:
            raise ScrapeError("status", f"HTTP {response.status}")
        at = self._clock.now()
        report = self.page.read(response.body, at)
        self.repeats += report.repeated
        fresh = self.page.unmapped - self._unread
        if fresh and len(self._unread) < 1000:
            self._unread |= fresh
            self.cut["unknown_fields"] += len(fresh)
        return Batch(
            self.name, self.role, self.subject, at, response.took_s,
            frames=report.frames, events=report.events, info=report.info, dropped=report.dropped,
        )  # fmt: skip

    def devices(self) -> Mapping[str, Mapping[str, str]]:
        """Facts by device, as the last page told them."""
        return self.page.devices

    def holders(self) -> Mapping[str, tuple[Holder, ...]]:
        """Workloads by device, as the last page told them."""
        return self.page.holders

    async def aclose(self) -> None:
        """Close the connection."""
        await self._client.aclose()
