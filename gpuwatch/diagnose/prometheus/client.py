"""Prometheus' HTTP API, read only: names, series and samples of a span of time, in pieces that the server accepts.

Samples come as scraped: a range selector in an instant query answers raw samples with their own time stamps, staleness
left out. Where a server does not answer that, or a step is asked for, range queries do: their times are the step's, and a
value may be up to five minutes old. Works with Prometheus and whatever speaks its API.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from ..material import MaterialError

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

MOST_POINTS = 11_000
"""A range query answers at most so many points a series."""
PIECE_S = 1800.0
"""Raw samples are asked for in pieces of this length."""
TIMEOUT_S = 60.0
MAX_SERIES = 50_000


class _Series(msgspec.Struct):
    metric: dict[str, str] = {}
    values: list[tuple[float, str]] = []
    histograms: list[msgspec.Raw] = []


class _Result(msgspec.Struct, rename="camel"):
    result_type: str = ""
    result: list[_Series] = []


class _Matrix(msgspec.Struct):
    status: str = ""
    data: _Result = msgspec.field(default_factory=_Result)
    warnings: list[str] = []


class _Labels(msgspec.Struct):
    status: str = ""
    data: list[dict[str, str]] = []


class Samples(msgspec.Struct, frozen=True):
    """One series: its labels, unix seconds, and the values as the server wrote them."""

    labels: dict[str, str]
    at: list[float]
    values: list[str]


class RefusedError(MaterialError):
    """The server answered and refused. `status` is HTTP's."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class PrometheusClient:
    """One server. `headers` are sent with each request. Use as a context manager; every method raises MaterialError."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        import httpx

        self.url = url.rstrip("/").removesuffix("/api/v1")
        self.native = 0
        self.warnings: list[str] = []
        self._raw: bool | None = None
        try:
            self._http = httpx.Client(headers=dict(headers or {}), timeout=TIMEOUT_S)
        except ValueError as error:
            raise MaterialError(f"--auth-file: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def series(self, selectors: list[str], since: float, until: float) -> list[dict[str, str]]:
        """Label sets of the series that these selectors match."""
        form = {"match[]": selectors, "start": f"{since:.3f}", "end": f"{until:.3f}"}
        found = self._decode(self._post("series", form), _Labels).data
        if len(found) > MAX_SERIES:
            raise MaterialError(
                f"{self.url}: {len(found)} series; at most {MAX_SERIES} are read: narrow it with --match"
            )
        return found

    def samples(self, selector: str, since: float, until: float, step_s: float | None = None) -> list[Samples]:
        """All samples of a selector in the span, series by series, in the order of time."""
        joined: dict[tuple[tuple[str, str], ...], Samples] = {}
        for piece in self._pieces(selector, since, until, step_s):
            for one in piece:
                self.native += len(one.histograms)
                key = tuple(sorted(one.metric.items()))
                into = joined.get(key)
                if into is None:
                    into = joined[key] = Samples(one.metric, [], [])
                last = into.at[-1] if into.at else -math.inf
                for at, value in one.values:
                    if at > last:  # pieces may share their edge
                        into.at.append(at)
                        into.values.append(value)
        return list(joined.values())

    def _pieces(self, selector: str, since: float, until: float, step_s: float | None) -> Iterator[list[_Series]]:
        if step_s is None and self._raw is not False:
            at = since
            try:
                while at < until:
                    end = min(at + PIECE_S, until)
                    query = f"{selector}[{max(1, math.ceil(end - at))}s]"
                    yield self._matrix("query", {"query": query, "time": f"{end:.3f}"})
                    self._raw = True
                    at = end
                return
            except RefusedError as error:
                if self._raw or error.status in (401, 403):
                    raise
                self._raw = False  # this server has no raw samples for us
        yield from self._by_steps(selector, since, until, step_s or 15.0)

    def _by_steps(self, selector: str, since: float, until: float, step_s: float) -> Iterator[list[_Series]]:
        at = since
        while at <= until:
            end = min(at + (MOST_POINTS - 1) * step_s, until)
            form = {"query": selector, "start": f"{at:.3f}", "end": f"{end:.3f}", "step": f"{step_s:g}"}
            yield self._matrix("query_range", form)
            at += MOST_POINTS * step_s

    def _matrix(self, path: str, form: dict[str, str]) -> list[_Series]:
        answer = self._decode(self._post(path, form), _Matrix)
        for warning in answer.warnings[:5]:
            if warning[:300] not in self.warnings and len(self.warnings) < 20:
                self.warnings.append(warning[:300])
        if answer.data.result_type not in ("matrix", ""):
            raise RefusedError(
                f"{self.url}: answers a {answer.data.result_type[:40]} where a matrix was asked for", 200
            )
        return answer.data.result

    def _post(self, path: str, form: Mapping[str, Any]) -> httpx.Response:
        import httpx

        url = f"{self.url}/api/v1/{path}"
        try:
            response = self._http.post(url, data=dict(form))
            if response.status_code == 405:  # a proxy that lets only GET through
                response = self._http.get(url, params=dict(form))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise MaterialError(f"{self.url}: {type(error).__name__}: {error}") from error
        if response.is_redirect:  # the headers may hold a token: they go where the user said, and nowhere else
            where = "".join(c for c in response.headers["location"][:200] if c.isprintable())
            raise MaterialError(f"{self.url}: leads to {where}; give that address if you trust it")
        if response.status_code != 200:
            raise RefusedError(f"{self.url}: HTTP {response.status_code}: {_reason(response)}", response.status_code)
        return response

    def _decode(self, response: httpx.Response, shape: type[T]) -> T:
        try:
            return msgspec.json.decode(response.content, type=shape, strict=False)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MaterialError(f"{self.url}: not the answer of a Prometheus: {str(error)[:200]}") from error


def headers_from(path: str) -> dict[str, str]:
    """Headers from a file: lines `Name: value`; a line without a colon is a bearer token. MaterialError naming the file."""
    if not path:
        return {}
    try:
        lines = [line.strip() for line in Path(path).read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise MaterialError(f"{path}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from error
    if not lines:
        raise MaterialError(f"{path}: empty: a token or header lines are expected")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip()] = value.strip()
        else:
            headers["Authorization"] = line if line.startswith(("Bearer ", "Basic ")) else f"Bearer {line}"
    return headers


def _reason(response: httpx.Response) -> str:
    """What the server says, bounded; never the request's headers."""
    try:
        said = response.json().get("error", "")
    except (ValueError, AttributeError):
        said = "" if "html" in response.headers.get("content-type", "") else response.text
    hint = " (see --auth-file)" if response.status_code in (401, 403) else ""
    return f"{str(said)[:300]}{hint}".strip() or response.reason_phrase
