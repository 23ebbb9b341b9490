"""The agent's answers to those who ask over HTTP: metrics, readiness, incidents, state, announcements, spans.

Everything is computed from the last judged second when it is asked for; nobody asks, nothing is spent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from .. import __version__
from ..catalog import CATALOG
from ..config import Config
from ..incidents.verdict import to_json
from ..model import Incident, Subject, Tick, Transition
from . import gpu_page, own_cost
from .metrics_page import (
    ENGINE_SIGNALS,
    GPU_SIGNALS,
    HOST_SIGNALS,
    EngineFigures,
    Health,
    View,
    render,
)
from .routes import Announced, AnnouncedMaintenance

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from ..pipeline import Pipeline
    from ..recording.recorder import Recorder
    from ..sinks.delivery import Delivery
    from ..sinks.store import Store
    from ..sources.changes.source import ChangesSource
    from ..sources.gpu.ownership.source import OwnershipSource
    from ..sources.poll import Poller
    from .span_intake import SpanDesk

_SHARES = {"front": "front_share_ratio", "queue": "queue_share_ratio", "prefill": "prefill_share_ratio"}
SPAN_REASONS = (
    "bad_ids",
    "bad_times",
    "too_many",
    "inbox_full",
    "unknown_engine",
    "not_requests",
    "late",
    "tree_too_large",
)
"""Why a span that came is in no request; each is counted under its name."""

_DEVICE_SIGNALS = tuple(name for name in CATALOG if name.startswith("gpu_"))
_FUTURE_S = 300.0
_PAST_S = 86_400.0


class Loop(Protocol):
    """What the answers are made from: the agent's loop (agent/loop.py), which stands above this room."""

    pipeline: Pipeline
    last: Tick | None
    recorder: Recorder
    store: Store
    pollers: tuple[Poller, ...]
    deliveries: tuple[Delivery, ...]
    counts: Counter[str]
    tick_seconds: float
    warm: bool


class Desk:
    """Answers for one agent."""

    def __init__(
        self, config: Config, watch: Loop, changes: ChangesSource, spans: SpanDesk, now: Callable[[], float],
        host: str = "", ownership: OwnershipSource | None = None,
    ) -> None:  # fmt: skip
        self.config = config
        self.watch = watch
        self._changes = changes
        self.spans = spans
        self._now = now
        self._host = host
        self._ownership = ownership
        self._started_at = now()

    def metrics(self) -> str:
        """The page."""
        pipeline, last = self.watch.pipeline, self.watch.last
        view = View(
            levels={subject: self._levels(subject) for subject in pipeline.subjects()},
            states=last.states if last else (),
            figures={subject: self._figures(subject) for subject in self._engines()},
            open=last.open if last else (),
            health=self._health(),
        )
        return render(view, self.config)

    def gpu_metrics(self) -> str:
        """The devices, for the agents beside this node's engines."""
        pipeline = self.watch.pipeline
        uses = self._ownership.map.devices if self._ownership is not None else {}
        devices = [
            gpu_page.DeviceView(
                subject.gpu,
                pipeline.info(subject),
                {name: value for name in _DEVICE_SIGNALS if not math.isnan(value := pipeline.level(subject, name))},
                uses[subject.gpu].holders if subject.gpu in uses else (),
            )
            for subject in pipeline.subjects()
            if subject.gpu
        ]
        return gpu_page.render(devices, self._host, self.watch.last.now if self.watch.last else math.nan)

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Ready once seconds are judged; that an engine is away is said, and does not make the agent unready."""
        sources = [
            {
                "name": poller.source.name,
                "ok": poller.counts.failing_since is None and poller.counts.polls > 0,
                "polls": poller.counts.polls,
                "errors": poller.counts.errors,
                "last_error": poller.counts.last_error,
            }
            for poller in self.watch.pollers
        ]
        ready = self.watch.last is not None
        journal, store = self.watch.recorder.journal, self.watch.store
        return ready, {
            "ready": ready,
            "warm": self.watch.warm,
            "journal": {"ok": not journal.last_error, "last_error": journal.last_error},
            "store": {"ok": not store.last_error, "last_error": store.last_error},
            "sources": sources,
        }

    def incidents(self, limit: int, only_open: bool) -> Sequence[Incident]:
        """From the store, newest onset first."""
        return self.watch.store.incidents(limit=limit, only_open=only_open)

    def incident(self, id: str) -> tuple[Incident, Sequence[Transition]] | None:
        """One incident and what was said of it."""
        found = self.watch.store.incident(id)
        return None if found is None else (found, self.watch.store.transitions(found.id))

    def state_json(self) -> bytes:
        """The five answers for each engine."""
        last = self.watch.last
        return msgspec.json.encode({"at": last.now if last else None, "states": last.states if last else ()})

    def verdict_json(self) -> bytes:
        """The verdict of the last second."""
        return to_json(self.watch.pipeline.verdict())

    def announce_change(self, change: Announced) -> None:
        """Raises ValueError for an unknown kind, an unknown engine or a time that is not near."""
        now = self._now()
        at = now if change.at is None else change.at
        if not now - _PAST_S <= at <= now + _FUTURE_S:
            raise ValueError("at: not within the last day")
        for subject in self._targets(change.engine):
            self._changes.announce(subject, at, change.what, change.detail)
        self._hurry()

    def announce_maintenance(self, window: AnnouncedMaintenance) -> None:
        """Raises ValueError for an unknown engine or a window that is over or upside down."""
        now = self._now()
        from_at = now if window.from_at is None else window.from_at
        if not (math.isfinite(window.until_at) and from_at < window.until_at and window.until_at > now):
            raise ValueError("until_at: must be later than from_at and than now")
        if not now - _PAST_S <= from_at <= now + _PAST_S:
            raise ValueError("from_at: not within a day from now")
        detail = {"until_at": f"{window.until_at:.3f}", "reason": window.reason}
        for subject in self._targets(window.engine):
            self._changes.announce(subject, from_at, "maintenance", detail)
        self._hurry()

    def take_traces(self, body: bytes, content_type: str, encoding: str) -> tuple[int, bytes, str]:
        """Status, body and content type of the answer to an export."""
        from .otlp_status import http_answer

        return http_answer(self.spans.take(body, content_type, encoding), content_type)

    def _engines(self) -> list[Subject]:
        """Engines that have been seen, and those that should have been."""
        seen = [subject for subject in self.watch.pipeline.subjects() if subject.engine]
        configured = [Subject(engine=target.name) for target in self.config.engines]
        names = {subject.engine for subject in seen}
        return seen + [subject for subject in configured if subject.engine not in names]

    def _targets(self, engine: str) -> Iterable[Subject]:
        engines = self._engines()
        chosen = [subject for subject in engines if engine in ("", subject.engine)]
        if not chosen:
            known = ", ".join(sorted({subject.engine for subject in engines})) or "none"
            raise ValueError(f"engine: no engine {engine[:64]!r}; known: {known}")
        return chosen

    def _hurry(self) -> None:
        """An announcement is seen by the next second, not when the source is due."""
        for poller in self.watch.pollers:
            if poller.source is self._changes:
                poller.due_at = 0.0

    def _levels(self, subject: Subject) -> dict[str, float]:
        names = GPU_SIGNALS if subject.gpu else HOST_SIGNALS if subject.host else ENGINE_SIGNALS
        level = self.watch.pipeline.level
        return {name: value for name in names if not math.isnan(value := level(subject, name))}

    def _figures(self, subject: Subject) -> EngineFigures:
        pipeline = self.watch.pipeline
        level = pipeline.level
        slo = pipeline.slo_counts(subject)
        blind = {b.rule for b in (self.watch.last.blind if self.watch.last else ()) if b.subject == subject.key}
        return EngineFigures(
            up=self._is_up(subject),
            ttft_p50_s=level(subject, "ttft_p50_seconds"),
            ttft_p95_s=level(subject, "ttft_p95_seconds"),
            e2e_p95_s=level(subject, "e2e_p95_seconds"),
            ttft_shares={stage: level(subject, name) for stage, name in _SHARES.items()},
            slo_requests={objective: total for objective, (total, _) in slo.items()},
            slo_good={objective: good for objective, (_, good) in slo.items()},
            blind={stem: stem in blind for stem in pipeline.rules},
        )

    def _is_up(self, subject: Subject) -> bool | None:
        """Whether the engine's page answered when it was last asked; None where it is not asked."""
        for poller in self.watch.pollers:
            source = poller.source
            if source.role == "engine" and source.subject.engine == subject.engine and poller.counts.polls:
                return poller.counts.failing_since is None
        return None

    def _health(self) -> Health:
        watch = self.watch
        journal = watch.recorder.journal
        return Health(
            version=__version__,
            cpu_seconds=own_cost.cpu_seconds(),
            resident_bytes=own_cost.resident_bytes(),
            tick_seconds=watch.tick_seconds,
            started_at=self._started_at,
            journal_ok=not journal.last_error,
            store_ok=not watch.store.last_error,
            journal_bytes=float(journal.counts["bytes"]),
            ticks=float(watch.counts["ticks"]),
            polls={p.source.name: float(p.counts.polls) for p in watch.pollers},
            poll_errors={p.source.name: float(p.counts.errors) for p in watch.pollers},
            dropped=self._dropped(),
            sinks={
                (d.sink.name, what): float(d.counts[what])
                for d in watch.deliveries
                for what in ("sent", "retries", "rejected", "dropped", "replaced")
            },
            sinks_waiting={d.sink.name: float(d.waiting) for d in watch.deliveries},
        )

    def _dropped(self) -> dict[str, float]:
        watch = self.watch
        journal, recorder, store = watch.recorder.journal.counts, watch.recorder.counts, watch.store.counts
        by_source: dict[str, float] = {}
        for poller in watch.pollers:
            what = f"{poller.source.role}_items"
            by_source[what] = by_source.get(what, 0.0) + poller.counts.dropped
            for reason, count in getattr(poller.source, "cut", {}).items():  # a log says what and why
                what = f"{poller.source.role}_{reason}"
                by_source[what] = by_source.get(what, 0.0) + count
        forwarder = self.spans.forwarder
        return {
            **by_source,
            "seconds_not_judged": watch.counts["failed_ticks"],
            "batches": watch.counts["dropped_batches"],
            "pipelines_begun_anew": watch.counts["restarted_pipelines"],
            "subjects": watch.pipeline.cut,
            "impossible": float(sum(history.impossible for history in watch.pipeline.memory.values())),
            "rules_that_failed": float(sum(watch.pipeline.failed_rules.values())),
            "calls_not_recorded": journal["failed_calls"],
            "journal_segments": journal["cut_segments"],
            "journal_torn": journal["torn_tails"] + journal["unreadable"],
            "capsules": recorder["cut_capsules"] + recorder["failed_capsules"],
            "snapshots": recorder["failed_snapshots"],
            "store_writes": store["failed_writes"],
            "store_opens": store["failed_opens"],
            "store_corrupt": store["corrupt"],
            "otlp_exports_refused": self.spans.counts["refused"],
            "otlp_exports_full": self.spans.counts["full"],
            **{f"spans_{reason}": float(self.spans.inbox.reasons[reason]) for reason in SPAN_REASONS},
            "forwarded_exports": forwarder.counts["dropped"] + forwarder.counts["rejected"] if forwarder else 0,
        }
