"""The doctor's look at an engine's address: what answers there, and the one change that would make its page be read.

Tries the configured path, then those where engines keep their pages; follows one redirect; tells a page without engine
series, another exporter's page, a web page, a locked door and a closed port apart. It sends GET and nothing else, and at
most a dozen of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urljoin, urlsplit

import msgspec

from ..dialects import all_dialects, recognise
from ..wire.exposition import parse
from ..wire.http_get import Response, ScrapeClient, ScrapeError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Finding = Literal[
    "page", "page elsewhere", "no engine series", "another exporter", "web page", "json", "locked", "not found",
    "refused", "slow", "broken",
]  # fmt: skip
_OPEN = (200,)
_MOVED = (301, 302, 303, 307, 308)
_LOCKED = (401, 403)
_PROCESS_ONLY = ("python_", "process_", "http_", "fastapi_", "starlette_", "go_", "promhttp_")
_EXPORTERS = {
    "DCGM_FI_": ("dcgm-exporter", "give it as gpu_url of the engine, and the engine's own page as url"),
    "node_": ("node-exporter", "give the engine's own page as url"),
    "container_": ("cAdvisor", "give the engine's own page as url"),
    "gpuwatch_": ("this agent", "give the engine's own page as url"),
    "inference_pool_": ("an endpoint picker", "give the page of an engine behind it as url"),
}
_WHO_IT_IS = {"/get_server_info": "sglang", "/version": "vllm", "/info": "tgi", "/props": "llamacpp"}
"""A path that only this engine answers with a JSON object: what it is when its page does not say."""


class EngineLook(msgspec.Struct, frozen=True):
    """What was found at an engine's address. `dialect` is empty where no page was found; `change` is what would help."""

    name: str
    url: str
    finding: Finding
    says: str
    change: str = ""
    dialect: str = ""


async def look_at(name: str, url: str, timeout_s: float = 2.0, dialect: str = "auto") -> EngineLook:
    """Look once. Never raises for what answers there."""
    parts = urlsplit(url)
    origin = f"{parts.scheme}://{parts.netloc}"
    path = parts.path if parts.path.strip("/") else "/metrics"
    async with _client(origin, timeout_s) as client:
        try:
            response, where = await _fetch(client, origin, path)
        except _LeavesError as error:
            said = f"{path} redirects to another address, {error.location}"
            return EngineLook(name, url, "not found", said, f"if that is the engine: url = {error.location}")
        except ScrapeError as error:
            return await _silent(client, name, url, origin, error, timeout_s)
        if response.status not in _OPEN:
            return await _closed(client, name, url, path, response)
        return await _judge(client, name, origin + where, path, response, dialect)


async def _judge(client: ScrapeClient, name: str, url: str, path: str, response: Response, dialect: str) -> EngineLook:
    """What a 200 is."""
    body = response.body
    names = parse(body, frozenset()).names
    spoken = recognise(names, dialect)
    moved = urlsplit(url).path.rstrip("/") != path.rstrip("/")
    if spoken:
        found = spoken[0][0]
        more = f"; change url to {url} to spare the redirect" if moved else ""
        return EngineLook(name, url, "page", f"{found.title}, {len(names)} names{more}", "", found.name)
    start = body.lstrip()[:200].lower()
    if start.startswith((b"<!doctype", b"<html")):
        change = "another port: this one is a web interface or a proxy"
        return await _elsewhere(client, name, url, path, "web page", "a web page, not metrics", change)
    if start[:1] in (b"{", b"["):
        return await _elsewhere(client, name, url, path, "json", "JSON, not a page", _json_change(body))
    for prefix, (what, change) in _EXPORTERS.items():
        if any(one.startswith(prefix) for one in names):
            return EngineLook(name, url, "another exporter", f"the page of {what}", change)
    if dialect != "auto" and recognise(names):
        other = recognise(names)[0][0]
        change = f'dialect = "{other.name}", or "auto"'
        return EngineLook(name, url, "another exporter", f"{other.title}, not {dialect}", change)
    said = f"a page of {len(names)} names without engine series" if names else "an empty page"
    return await _elsewhere(client, name, url, path, "no engine series", said, await _metrics_off(client, names))


async def _elsewhere(
    client: ScrapeClient, name: str, url: str, path: str, finding: Finding, said: str, change: str
) -> EngineLook:
    """The same finding, or the engine's page under another path of this port."""
    origin = f"{urlsplit(url).scheme}://{urlsplit(url).netloc}"
    for other in _paths(path):
        page = await _page(client, other)
        if page is not None:
            dialect, title = page
            return EngineLook(
                name, url, "page elsewhere", f"{said}; {title} is at {other}", f"url = {origin}{other}", dialect
            )
    return EngineLook(name, url, finding, said, change)


async def _closed(client: ScrapeClient, name: str, url: str, path: str, response: Response) -> EngineLook:
    """A status that is not 200."""
    if response.status in _LOCKED:
        said = f"HTTP {response.status}: it asks for a credential"
        change = "engines leave /metrics open, so a proxy stands before it: give the address of the engine itself"
        return EngineLook(name, url, "locked", said, change)
    said = f"HTTP {response.status} at {path}"
    off = response.status in (404, 501)
    change = await _metrics_off(client, frozenset()) if off else "see the engine's log: its page fails"
    finding: Finding = "not found" if response.status == 404 else "broken"
    return await _elsewhere(client, name, url, path, finding, said, change)


async def _silent(
    client: ScrapeClient, name: str, url: str, origin: str, error: ScrapeError, timeout_s: float
) -> EngineLook:
    """Nothing answers: is the engine on another port of this host?"""
    if error.reason == "timeout":
        change = (
            "if it is busy: raise [lanes] timeout_s; if it never answers, it hangs or a firewall drops what is sent"
        )
        return EngineLook(name, url, "slow", str(error), change)
    if error.reason != "refused":
        change = "https:// where TLS is spoken; otherwise another program listens there"
        return EngineLook(name, url, "broken", f"{error.reason}: {error}", change)
    parts = urlsplit(origin)
    for port, path in _usual_places():
        if port == parts.port or not parts.hostname:
            continue
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        async with _client(f"{parts.scheme}://{host}:{port}", min(timeout_s, 0.5)) as other:
            page = await _page(other, path)
        if page is not None:
            there = f"{parts.scheme}://{host}:{port}{path}"
            said = f"{error}; {page[1]} answers at port {port}"
            return EngineLook(name, url, "page elsewhere", said, f"url = {there}", page[0])
    change = "start the engine, or give the port it listens on; in another container 127.0.0.1 is not this one"
    return EngineLook(name, url, "refused", str(error), change)


async def _fetch(client: ScrapeClient, origin: str, path: str) -> tuple[Response, str]:
    """The answer and the path it came from, after at most one redirect within the address."""
    response = await client.get(path)
    if response.status not in _MOVED:
        return response, path
    location = urljoin(origin + path, response.headers.get("location", ""))
    target = urlsplit(location)
    if f"{target.scheme}://{target.netloc}" != origin:
        raise _LeavesError(location[:200])
    where = target.path + (f"?{target.query}" if target.query else "")
    return await client.get(where), where


class _LeavesError(Exception):
    """A redirect to another address, which is not followed."""

    def __init__(self, location: str) -> None:
        self.location = location
        super().__init__(location)


async def _page(client: ScrapeClient, path: str) -> tuple[str, str] | None:
    """(dialect, title) of the engine whose page is at this path; None where there is none."""
    try:
        response = await client.get(path)
    except ScrapeError:
        return None
    spoken = recognise(parse(response.body, frozenset()).names) if response.status in _OPEN else []
    return (spoken[0][0].name, spoken[0][0].title) if spoken else None


async def _metrics_off(client: ScrapeClient, names: frozenset[str]) -> str:
    """Which engine this is, from a path that only it has, and how its metrics are switched on."""
    for path, dialect in _WHO_IT_IS.items():
        try:
            response = await client.get(path)
        except ScrapeError:
            continue
        if response.status in _OPEN and _is_object(response.body) and dialect in all_dialects():
            known = all_dialects()[dialect]
            return f"this is {known.title}; its metrics: {known.page.enable}"
    switched = "; ".join(f"{d.title}: {d.page.enable}" for d in all_dialects().values() if "--" in d.page.enable)
    only = names and all(one.startswith(_PROCESS_ONLY) for one in names)
    if only or not names:
        return f"start the engine with its metrics ({switched})"
    return "another port or path is the engine's"


def _paths(tried: str) -> Iterator[str]:
    """Where else on the same port a page may be: with and without the slash, and where engines keep theirs."""
    slashed = tried + "/" if not tried.endswith("/") else tried.rstrip("/")
    usual = dict.fromkeys((slashed, "/metrics", "/metrics/", *(d.page.path for d in all_dialects().values())))
    yield from (path for path in usual if path not in (tried, ""))


def _usual_places() -> list[tuple[int, str]]:
    return sorted({(d.page.port, d.page.path) for d in all_dialects().values()})


def _json_change(body: bytes) -> str:
    if body.lstrip()[:1] == b"[":
        return "trtllm-serve's list of iterations is emptied by reading it; its page is /prometheus/metrics"
    return "another path: this one is an API"


def _is_object(body: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(body), dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


@asynccontextmanager
async def _client(origin: str, timeout_s: float) -> AsyncIterator[Any]:
    client = ScrapeClient(origin, timeout_s)
    try:
        yield client
    finally:
        await client.aclose()
