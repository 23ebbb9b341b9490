"""What a dialect is: data that says how one engine names the catalogue's signals.

Names stand without the engine's prefix (`num_requests_running`), newest first, old and new side by side; an engine is
detected by the presence of names, never by its version. Every engine signal of the catalogue is mapped, read from an
info metric, inferred by the agent, or listed in `absent` with the reason.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Literal

import msgspec

from ..catalog import CATALOG

_NOT_THE_ENGINES = ("gpu_", "host_", "cgroup_", "process_cpu", "process_memory", "scrape_")
_DERIVED = frozenset({
    "arrival_rate_per_second", "completion_rate_per_second", "ttft_p50_seconds", "ttft_p95_seconds",
    "e2e_p95_seconds", "itl_mean_seconds", "good_ratio", "kv_long_share_ratio", "queue_share_ratio",
    "prefill_share_ratio", "front_share_ratio",
})  # fmt: skip

ENGINE_SIGNALS: tuple[str, ...] = tuple(
    name for name in CATALOG if not name.startswith(_NOT_THE_ENGINES) and name not in _DERIVED
)
"""The catalogue's signals that an engine's page could show. The others are a device's, a host's or the agent's own."""

FAST_SIGNALS: tuple[str, ...] = (
    "req_running", "req_waiting", "kv_usage_ratio", "head_wait_seconds", "waiting_fit", "steps_total",
    "req_arrived_total", "req_finished_total", "req_rejected_total", "req_preempted_total", "prompt_tokens_total",
    "generated_tokens_total", "recomputed_tokens_total",
)  # fmt: skip
"""What the fast lane asks for: a handful of gauges and counters, cheap for the engine to render."""


_HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")


class Term(msgspec.Struct, frozen=True):
    """Series to add up: the first of `names` that the page has, restricted by label values.

    `where` keeps series whose label has one of the values, `unless` drops them. `bare` names carry no engine prefix.
    A signal is unknown while a term without `optional` is not on the page.
    """

    names: tuple[str, ...]
    where: dict[str, tuple[str, ...]] = {}
    unless: dict[str, tuple[str, ...]] = {}
    bare: bool = False
    optional: bool = False


class Reading(msgspec.Struct, frozen=True):
    """A signal: its terms added up and multiplied by `factor`. `across` says how series of one term combine."""

    terms: tuple[Term, ...]
    factor: float = 1.0
    across: Literal["sum", "max"] = "sum"


class Facts(msgspec.Struct, frozen=True):
    """An info metric: its labels are facts. `labels` maps theirs to ours; empty takes all as they are."""

    names: tuple[str, ...]
    labels: dict[str, str] = {}


class Dialect(msgspec.Struct, frozen=True):
    """One engine's names. `detect`: any of these names, under any prefix, identifies it.

    `histograms` maps a signal to the names of a histogram (without `_bucket`). `from_facts` are signals taken from the
    facts of an info metric (sources/facts.py), `inferred` those that the agent works out from others, with the way.
    `created` are names of creation stamps: a changed one is a restart.
    """

    name: str
    prefixes: tuple[str, ...]
    detect: tuple[str, ...]
    signals: dict[str, Reading]
    histograms: dict[str, tuple[str, ...]]
    facts: tuple[Facts, ...]
    absent: dict[str, str]
    from_facts: tuple[str, ...] = ()
    inferred: dict[str, str] = {}
    rank_label: str = "engine"
    model_label: str = "model_name"
    created: tuple[str, ...] = ()

    def prefix_on(self, names: AbstractSet[str]) -> str | None:
        """The prefix under which this engine speaks on a page with these sample names; None if it does not."""
        for prefix in self.prefixes:
            if any(prefix + name in names for name in self.detect):
                return prefix
        return None

    def sample_names(self, prefix: str) -> frozenset[str]:
        """Every sample name that this dialect reads."""
        names = {name for signal in self.signals for each in self._alternatives(signal, prefix) for name in each}
        for histogram in self.histograms.values():
            names.update(prefix + name + suffix for name in histogram for suffix in _HISTOGRAM_SUFFIXES)
        names.update(prefix + name for facts in self.facts for name in facts.names)
        names.update(prefix + name for name in self.created)
        return frozenset(names)

    def fast_names(self, prefix: str, seen: AbstractSet[str]) -> tuple[str, ...]:
        """Sample names of the fast lane's signals: those on the page, and the newest of those that may still come."""
        return tuple(dict.fromkeys(self._current(FAST_SIGNALS, prefix, seen)))

    def slow_names(self, prefix: str, seen: AbstractSet[str]) -> tuple[str, ...]:
        """Sample names of all signals, histograms and start stamps, as `fast_names` chooses them; facts not."""
        names = self._current(tuple(self.signals), prefix, seen)
        for histogram in self.histograms.values():
            name = next((n for n in histogram if prefix + n + "_bucket" in seen), histogram[0])
            names += [prefix + name + suffix for suffix in _HISTOGRAM_SUFFIXES]
        names += [prefix + name for name in self.created if prefix + name in seen]
        return tuple(dict.fromkeys(names))

    def _alternatives(self, signal: str, prefix: str) -> list[tuple[str, ...]]:
        """For each term of a signal, the sample names that may carry it."""
        reading = self.signals.get(signal)
        return [
            term.names if term.bare else tuple(prefix + name for name in term.names)
            for term in (reading.terms if reading else ())
        ]

    def _current(self, signals: tuple[str, ...], prefix: str, seen: AbstractSet[str]) -> list[str]:
        return [
            next((name for name in names if name in seen), names[0])
            for signal in signals
            for names in self._alternatives(signal, prefix)
        ]


def take(*names: str, factor: float = 1.0, bare: bool = False, across: Literal["sum", "max"] = "sum") -> Reading:
    """A signal that is one metric: the first of `names` on the page."""
    return Reading((Term(names, bare=bare),), factor, across)


def add(*terms: Term) -> Reading:
    """A signal that is the sum of several selections."""
    return Reading(terms)
