"""Which part of an engine's page to ask for, and at what price.

`?name[]=` makes a scrape five to ten times cheaper for the engine, where it is honoured: vLLM does on `/metrics/` only,
and answers an empty 200 there in multiprocess mode. So it is tried and the answer judged by what it contains.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Literal
from urllib.parse import quote

from ...wire.exposition import parse

COST_BUDGET_RATIO = 0.01
"""Share of the API server's core that looking at it may cost."""

WHOLE_PAGE_PRICE = 5.0
"""A whole page costs a busy event loop five times its duration: it is rendered in a thread that fights for the GIL."""

TRY_AGAIN_S = 600.0


class PageFilter:
    """Finds out whether and under which path the engine honours a filter. `path` is where the whole page lies."""

    def __init__(self, path: str) -> None:
        bare = path.rstrip("/")
        self.candidates = (f"{bare}/", bare)
        self.state: Literal["unknown", "yes", "no"] = "unknown"
        self._path = self.candidates[0]
        self._refused_at = 0.0

    def target(self, names: Iterable[str], path: str | None = None) -> str:
        """The request target that asks for `names`, under `path` or the one that is known to work."""
        query = "&".join("name%5B%5D=" + quote(name, safe=":_") for name in names)
        return f"{path or self._path}?{query}"

    def judge(self, path: str, body: bytes, asked: AbstractSet[str], seen: AbstractSet[str]) -> bool:
        """True, and remembered, if the answer has everything that was asked for and exists, and nothing else."""
        names = parse(body, frozenset()).names
        honoured = bool(names) and (asked & seen) <= names <= asked
        if honoured:
            self.state, self._path = "yes", path
        return honoured

    def refuse(self, now: float) -> None:
        """The engine honours no filter; try again in ten minutes."""
        self.state, self._refused_at = "no", now

    def reconsider(self, now: float, *, restarted: bool = False) -> None:
        """Forget a refusal that is old, or one of the engine's last life."""
        if restarted or (self.state == "no" and now - self._refused_at >= TRY_AGAIN_S):
            self.state = "unknown"


class ScrapeCost:
    """What a scrape costs the engine: the quickest of the last answers, for the slower ones were waiting for it."""

    def __init__(self, remembered: int = 8) -> None:
        self._took_s: deque[float] = deque(maxlen=remembered)

    def add(self, took_s: float) -> None:
        """Book one answer's duration in seconds."""
        self._took_s.append(took_s)

    def interval_s(self, wanted_s: float, price: float = 1.0, longest_s: float = 10.0) -> float:
        """The wanted interval, or as much longer as the cost budget asks."""
        if not self._took_s:
            return wanted_s
        return max(wanted_s, min(min(self._took_s) * price / COST_BUDGET_RATIO, longest_s))
