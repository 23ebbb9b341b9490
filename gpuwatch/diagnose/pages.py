"""One page, whatever is on it: engine, dcgm-exporter, host and container series become the batches of their sources.

Several exporters' pages may have been written into one file or one folder: each reader takes what is its own. A page on
which nobody finds anything is a failed look at the engine, and says what it seems to be instead.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from ..catalog import CATALOG, check_value
from ..model import Batch, Frame, Subject
from ..sources.gpu.dcgm import DcgmPage
from ..sources.page.engine_page import EnginePage
from ..sources.page.iterations import is_list, newest
from ..wire.exposition import parse
from .host_page import HostPage, speaks_of_host

_DCGM = b"DCGM_"
_NO_UUID = re.compile(rb'^(DCGM_\w+\{)(?![^}]*(?:UUID|uuid|gpu_uuid)=)([^}]*?\bgpu="([^"]*)"[^}]*\})', re.MULTILINE)
_SERVER_ONLY = ("python_", "process_", "http_", "fastapi_", "go_", "promhttp_", "scrape_")

_NO_VALUES = "names without values: the page lists series and shows none of them"
_NOT_ENGINES = (b"#", _DCGM, b"container_", b"node_", b"machine_", b"cadvisor_", *(p.encode() for p in _SERVER_ONLY))


class PageBook:
    """Reads the pages of one engine and of the machine it runs on, in the order of time."""

    def __init__(self, engine: str, host: str = "host") -> None:
        self._engine = Subject(engine=engine)
        self._host = Subject(host=host)
        self._page = EnginePage(engine)
        self._gpus = DcgmPage()
        self._machine = HostPage(self._host, self._engine)
        self.seen: Counter[str] = Counter()
        self.dropped = 0
        self.dialect = ""  # of the last page that was an engine's

    def read(self, body: bytes, at: float, took_s: float = 0.0) -> list[Batch]:
        """The batches of one page received at `at`. Never raises for bad text."""
        body = body if body.endswith(b"\n") else body + b"\n"
        if b"# TYPE " in body and not _has_values(body):
            return [self.failed(at, _NO_VALUES)]
        if is_list(body):
            return [self._iterations(body, at, took_s)]
        gpu = self._gpu(body, at)
        engine = self._read_engine(body, at, took_s)
        host = self._read_host(body, at, of_engine=engine is not None and engine.error is None)
        found = [batch for batch in (engine, gpu, host) if batch is not None]
        if engine is not None and engine.error is not None:
            if (gpu or host) and not self.dialect:
                found.remove(engine)  # an exporter's own page is no failed look at the engine
            else:
                self.seen["failed"] += 1
        return found or [self.failed(at, "an empty page")]

    def failed(self, at: float, why: str, took_s: float = 0.0) -> Batch:
        """A look that brought nothing."""
        self.seen["failed"] += 1
        return self._failure(at, why, took_s)

    def _failure(self, at: float, why: str, took_s: float) -> Batch:
        return Batch(f"page:{self._engine.engine}", "engine", self._engine, at, took_s, error=why[:300])

    def _read_engine(self, body: bytes, at: float, took_s: float) -> Batch | None:
        if not body.strip() or (_has_others(body) and not _has_own(body)):
            return None
        try:
            report = self._page.read(body, at)
        except ValueError as error:
            return self._failure(at, _what_it_is(body) or str(error), took_s)
        self.seen["engine"] += 1
        self.dialect = self._page.dialect.name if self._page.dialect else ""
        self.dropped += report.dropped
        return Batch(
            f"page:{self._engine.engine}", "engine", self._engine, at, took_s,
            frames=report.frames, histograms=report.histograms, events=report.events, info=report.info,
            dropped=report.dropped,
        )  # fmt: skip

    def _iterations(self, body: bytes, at: float, took_s: float) -> Batch:
        """A list of iterations in place of a page: the newest is one look."""
        found = {name: value for name, value in newest(body).items() if name in CATALOG and check_value(name, value)}
        if not found:
            return self.failed(at, "a list without iterations: nothing ran, or another reader emptied it", took_s)
        self.seen["engine"] += 1
        self.dialect = self.dialect or "iterations"
        frame = Frame(self._engine, "page", tuple(found), np.array([at]), np.array([list(found.values())]))
        return Batch(f"page:{self._engine.engine}", "engine", self._engine, at, took_s, frames=(frame,))

    def _gpu(self, body: bytes, at: float) -> Batch | None:
        if _DCGM not in body:
            return None
        lines = b"\n".join(line for line in body.split(b"\n") if line.startswith(_DCGM)) + b"\n"
        report = self._gpus.read(_NO_UUID.sub(rb'\1UUID="gpu\3",\2', lines), at)
        self.seen["gpu"] += 1
        self.seen["gpu repeats"] += report.repeated
        self.dropped += report.dropped
        return Batch(
            "dcgm", "gpu", self._host, at, frames=report.frames, events=report.events, info=report.info,
            dropped=report.dropped,
        )  # fmt: skip

    def _read_host(self, body: bytes, at: float, *, of_engine: bool) -> Batch | None:
        if not speaks_of_host(body):
            return None
        frames = self._machine.read(body, at, of_engine=of_engine)
        if not frames and (of_engine or not self._machine.told):
            return None
        self.seen["host"] += 1
        return Batch("host", "host", self._host, at, frames=frames)


def _has_values(body: bytes) -> bool:
    """Whether there is a line that is no comment."""
    return any(line and not line.lstrip().startswith(b"#") for line in body.split(b"\n"))


def _has_others(body: bytes) -> bool:
    """Whether an exporter other than the engine's wrote some of it."""
    return _DCGM in body or b"container_" in body or b"node_" in body


def _has_own(body: bytes) -> bool:
    """Whether there is a line that neither an exporter nor a process writes about itself: an engine's, perhaps."""
    return any(line and not line.startswith(_NOT_ENGINES) for line in body.split(b"\n"))


def _what_it_is(body: bytes) -> str:
    """What a page that no dialect knows seems to be; empty where that cannot be said."""
    text = body.lstrip()[:200].lower()
    if text.startswith((b"<!doctype", b"<html")):
        return "an HTML page, not metrics: another port or path answers there"
    names = parse(body, frozenset()).names
    if names and all(name.startswith(_SERVER_ONLY) for name in names):
        return (
            f"no engine series on the page ({len(names)} names, all of the process itself): the engine was started without its"
            " metrics, or this is another process's page"
        )
    return ""


def look_of(book: PageBook) -> str:
    """What the pages were, in words."""
    kinds = [f"{book.dialect} page" if book.dialect else "", "dcgm-exporter" if book.seen["gpu"] else ""]
    kinds.append("host and container series" if book.seen["host"] else "")
    words = " + ".join(k for k in kinds if k) or "page without engine series"
    extra = [f"{book.seen[k]} {k}" for k in ("failed", "gpu repeats") if book.seen[k]]
    return words + (f" ({', '.join(extra)})" if extra else "")
