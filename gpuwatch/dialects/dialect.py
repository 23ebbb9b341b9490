"""What a dialect is: data that says how one engine names the catalogue's signals.

Names stand without the engine's prefix (`num_requests_running`), newest first, old and new side by side; an engine is
detected by the presence of names, never by its version. Every engine signal of the catalogue is mapped, read from an
info metric, inferred by the agent, or listed in `absent` with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

import msgspec

from ..catalog import CATALOG
from .reading import Distribution, Mean, Reading, Roster, Term

_NOT_THE_ENGINES = (
    "gpu_", "host_", "cgroup_", "process_cpu", "process_front", "process_thread", "process_run", "process_switches",
    "process_major", "process_memory", "process_open", "scrape_",
)  # fmt: skip
_DERIVED = frozenset({
    "arrival_rate_per_second", "completion_rate_per_second", "ttft_p50_seconds", "ttft_p95_seconds",
    "e2e_p95_seconds", "itl_mean_seconds", "good_ratio", "kv_long_share_ratio", "queue_share_ratio",
    "prefill_share_ratio", "front_share_ratio",
})  # fmt: skip
_LOGGED = frozenset({"prompt_tokens_per_second", "generated_tokens_per_second"})  # pages have counters for these

ENGINE_SIGNALS: tuple[str, ...] = tuple(
    name for name in CATALOG if not name.startswith(_NOT_THE_ENGINES) and name not in _DERIVED | _LOGGED
)
"""The catalogue's signals that an engine's page could show. The others are a device's, a host's or the agent's own."""

FAST_SIGNALS: tuple[str, ...] = (
    "req_running", "req_waiting", "kv_usage_ratio", "head_wait_seconds", "waiting_fit", "steps_total",
    "req_arrived_total", "req_finished_total", "req_rejected_total", "req_preempted_total", "prompt_tokens_total",
    "generated_tokens_total", "recomputed_tokens_total",
)  # fmt: skip
"""What the fast lane asks for: a handful of gauges and counters, cheap for the engine to render."""

_HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")


class Facts(msgspec.Struct, frozen=True):
    """An info metric: its labels are facts. `labels` maps theirs to ours; empty takes all as they are."""

    names: tuple[str, ...]
    labels: dict[str, str] = {}


class Page(msgspec.Struct, frozen=True):
    """Where the engine shows its page, what turns it on, and what looking costs.

    `price`: how many times its own duration a whole page costs the engine's busy thread; a native server that renders
    between two steps makes the scrape wait and costs little. `timeout_s`: how long an honest answer may take.
    """

    path: str
    port: int
    enable: str
    price: float = 5.0
    timeout_s: float = 0.0


class Dialect(msgspec.Struct, frozen=True):
    """One engine's names. `detect`: any of these names, under any prefix, identifies it.

    `bare_detect` does so without a prefix (releases that had none), `any_prefix` all together under a prefix that the
    operator chose. `yields` to an engine whose own names stand on the same page. `histograms` maps a signal to a
    distribution, `means` to a sum and a count where there is no histogram. `from_facts` are signals taken from the facts
    of an info metric (sources/facts.py), `inferred` those that the agent works out from others, with the way;
    `also_ended` are counted among the arrivals beside finished, running and waiting ones where the page shows them. `created`
    are names of creation stamps: a changed one is a restart. `rank_labels` tell the ranks and replicas of one page apart;
    `copies` are labels whose series repeat the same quantity, `totals` labels whose empty value is the total of the rest.
    """

    name: str
    title: str
    prefixes: tuple[str, ...]
    detect: tuple[str, ...]
    signals: dict[str, Reading]
    histograms: dict[str, Distribution]
    facts: tuple[Facts, ...]
    absent: dict[str, str]
    page: Page
    means: dict[str, Mean] = {}
    from_facts: tuple[str, ...] = ()
    inferred: dict[str, str] = {}
    also_ended: tuple[str, ...] = ("req_rejected_total",)
    rosters: tuple[Roster, ...] = ()
    rank_labels: tuple[str, ...] = ("engine",)
    copies: tuple[str, ...] = ()
    totals: tuple[str, ...] = ()
    model_labels: tuple[str, ...] = ("model_name",)
    created: tuple[str, ...] = ()
    bare_detect: tuple[str, ...] = ()
    any_prefix: tuple[str, ...] = ()
    yields: bool = False
    notes: tuple[str, ...] = ()

    @property
    def mapped(self) -> tuple[str, ...]:
        """Every signal that it can show, whatever the way."""
        listed = [name for roster in self.rosters for name in (*roster.lists, *roster.numbers)]
        return (*self.signals, *self.histograms, *self.means, *self.from_facts, *self.inferred, *listed)

    def prefix_on(self, names: AbstractSet[str]) -> str | None:
        """The prefix under which this engine speaks on a page with these sample names; None if it does not."""
        for prefix in self.prefixes:
            if any(name in names for name in self.sentinels(prefix)):
                return prefix
        for prefix in self.prefixes:  # a page of which a part was kept: any name of ours under a prefix of ours
            if prefix and any(name.startswith(prefix) for name in names & self.sample_names(prefix)):
                return prefix
        if self.any_prefix:
            first = self.any_prefix[0]
            for name in sorted(names):
                prefix = name.removesuffix(first)
                if prefix and prefix != name and all(prefix + other in names for other in self.any_prefix):
                    return prefix
        return None

    def sentinels(self, prefix: str) -> frozenset[str]:
        """The names that identify it under this prefix: series with them say which ranks there are."""
        return frozenset(prefix + name for name in (self.detect if prefix else self.bare_detect))

    def sample_names(self, prefix: str) -> frozenset[str]:
        """Every sample name that this dialect reads."""
        names = set(self.sentinels(prefix))
        for term in self._every_term():
            names.update(term.full_names(prefix))
        for distribution in self.histograms.values():
            names.update(prefix + name + suffix for name in distribution.names for suffix in _HISTOGRAM_SUFFIXES)
        names.update(prefix + name for facts in self.facts for name in facts.names)
        names.update(prefix + name for roster in self.rosters for name in roster.names)
        names.update(prefix + name for name in self.created)
        return frozenset(names)

    def fast_names(self, prefix: str, seen: AbstractSet[str]) -> tuple[str, ...]:
        """Sample names of the fast lane's signals: those on the page, and the newest of those that may still come."""
        return tuple(dict.fromkeys(self._current(FAST_SIGNALS, prefix, seen)))

    def slow_names(self, prefix: str, seen: AbstractSet[str]) -> tuple[str, ...]:
        """Sample names of all signals, histograms and start stamps, as `fast_names` chooses them; facts not."""
        names = self._current(self.signals, prefix, seen)
        for mean in self.means.values():
            for term in (*mean.sum.terms, *mean.count.terms):
                names.append(_first_seen(term.full_names(prefix), seen))
        for distribution in self.histograms.values():
            name = next((n for n in distribution.names if prefix + n + "_bucket" in seen), distribution.names[0])
            names += [prefix + name + suffix for suffix in _HISTOGRAM_SUFFIXES]
        names += [prefix + name for name in self.created if prefix + name in seen]
        names += [prefix + name for roster in self.rosters for name in roster.names if prefix + name in seen]
        return tuple(dict.fromkeys(names))

    def _every_term(self) -> Iterable[Term]:
        readings = [*self.signals.values(), *(r for mean in self.means.values() for r in (mean.sum, mean.count))]
        return (term for reading in readings for choice in reading.choices for term in choice.terms)

    def _current(self, signals: Iterable[str], prefix: str, seen: AbstractSet[str]) -> list[str]:
        """For each signal the names of every way of reading it that the page allows, of the newest where none is.

        Every way: which of them holds may depend on label values that have not been seen yet.
        """
        names: list[str] = []
        for signal in signals:
            reading = self.signals.get(signal)
            if reading is None:
                continue
            ways = [choice for choice in reading.choices if choice.is_on(prefix, seen)] or [reading]
            names += [_first_seen(term.full_names(prefix), seen) for way in ways for term in way.terms]
        return names


def _first_seen(names: tuple[str, ...], seen: AbstractSet[str]) -> str:
    return next((name for name in names if name in seen), names[0])
