"""The heart: `step(now, batches)` takes what has arrived and says what it means. Synchronous, no I/O, deterministic.

The live agent, replay, diagnose, the scenario tests and the scoreboard all call it, on a one-second grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from .config import Config, Slo
from .incidents.tracker import Judged, OpenIncident, Pending, Tracker
from .memory import snapshot
from .memory.baseline import Baseline
from .memory.history import HistogramSeries, History
from .memory.requests import Arrivals, FinishedRequests
from .memory.tiers import Tier
from .memory.view import Window
from .model import (
    Batch,
    Blind,
    EngineState,
    Finding,
    Incident,
    Missing,
    SourceSeen,
    Subject,
    Tick,
    Transition,
    Verdict,
)
from .questions import derived
from .questions.gpu import gpu
from .questions.harm import harm
from .questions.latency import latency
from .questions.lifecycle import lifecycle
from .questions.line import line
from .questions.moved import moved
from .questions.queue import queue
from .questions.rhythm import state as rhythm_state
from .rules import Rule, load_rules
from .sources.gpu import device_map

MAX_SUBJECTS = 256
_OBJECTIVES: dict[str, tuple[str, Callable[[Slo], float]]] = {
    "ttft_p95": ("ttft_seconds", lambda slo: slo.ttft_p95_s),
    "tpot_p95": ("tpot_seconds", lambda slo: slo.tpot_p95_s),
}
"""Objective → the histogram that counts it and its limit in seconds."""


class Pipeline:
    """All that is known, and the verdict on it."""

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or Config()
        self.rules = {s: r for s, r in load_rules().items() if s not in self.config.muted}
        self.params = {s: _params(r, self.config.rules.get(s, {})) for s, r in self.rules.items()}
        self.memory: dict[str, History] = {}
        self.baselines: dict[str, Baseline] = {}
        self.trackers: dict[str, Tracker] = {}
        self.seen: dict[str, SourceSeen] = {}
        self.slo: dict[str, dict[str, list[float]]] = {}  # engine -> objective -> [requests, good ones], cumulative
        self.states: dict[str, EngineState] = {}
        self.blind: tuple[Blind, ...] = ()
        self.now = -math.inf
        self.cut = 0
        self.failed_rules: dict[str, int] = {}  # rule -> ticks that it could not judge for a fault of its own
        self._judged: dict[str, Judged] = {}

    # --- the one call --------------------------------------------------------------------------------------------

    def step(self, now: float, batches: Sequence[Batch]) -> Tick:
        """Take the batches that arrived since the last call and judge every engine as of `now` (unix seconds).

        `now` must not run backwards (ValueError).
        """
        if now < self.now:
            raise ValueError(f"time runs backwards: {self.now} → {now}")
        self.now = now
        for batch in batches:
            self._take(batch)
        for history in self.memory.values():
            history.advance(now)
        findings: list[Finding] = []
        transitions: list[Transition] = []
        blind: list[Blind] = []
        for key, history in self.memory.items():
            if history.subject.engine:
                judged = self._judge(key, history, blind)
                self._judged[key] = judged
                findings += judged.sure
                transitions += self.trackers[key].judge(judged, self.rules)
                self._learn(key, judged)
        self.blind = tuple(blind)
        return Tick(now, tuple(self.states.values()), tuple(findings), tuple(transitions), self.blind, self.open())

    # --- what may be asked ---------------------------------------------------------------------------------------

    def subjects(self) -> tuple[Subject, ...]:
        """Everything that has been seen."""
        return tuple(h.subject for h in self.memory.values())

    def level(self, subject: Subject, signal: str) -> float:
        """The value of the last full second from the best fresh source; NaN where there is none."""
        history = self.memory.get(subject.key)
        if history is None:
            return math.nan
        for source in history.sources(signal):
            value = float(history.tiers[source].span(signal, self.now, 1)[-1])
            if not math.isnan(value):
                return value
        return math.nan

    def info(self, subject: Subject) -> Mapping[str, str]:
        """What a subject says of itself; empty for one that was never seen."""
        history = self.memory.get(subject.key)
        return history.info if history is not None else {}

    def open(self) -> tuple[Incident, ...]:
        """The open incidents, by severity, then onset."""
        return _sorted([i for i in self._incidents() if i.status == "open"])

    def verdict(self) -> Verdict:
        """The answer so far: all incidents, the state of the engine in worst shape, blind rules, sources."""
        found = _sorted(self._incidents())
        worst = found[0].subject["engine"] if found else ""
        states = sorted(self.states.values(), key=lambda s: (s.subject.engine != worst, s.subject))
        return Verdict(1, found, states[0] if states else None, self.blind, tuple(self.seen.values()))

    def window(self, subject: Subject) -> Window:
        """What a rule may ask of an engine as of the last call. KeyError for an engine that was never seen."""
        return self._window(self.memory[subject.key])

    def slo_counts(self, subject: Subject) -> dict[str, tuple[float, float]]:
        """Objective (ttft_p95, tpot_p95) → (requests, requests within it); cumulative, so rates are theirs to take."""
        return {name: (total, good) for name, (total, good) in self.slo.get(subject.key, {}).items()}

    def snapshot(self) -> bytes:
        """The whole state; `restore` gives a pipeline that goes on exactly as this one would."""
        return snapshot.encode({name: getattr(self, name) for name in _STATE}, _CLASSES)

    @classmethod
    def restore(cls, config: Config | None, data: bytes) -> Pipeline:
        """A pipeline from a snapshot; SnapshotError for bytes that are none. Empty bytes: a fresh one."""
        made = cls(config)
        if not data:
            return made
        state = snapshot.decode(data, _CLASSES)
        if not isinstance(state, dict) or state.keys() != _STATE.keys():
            raise snapshot.SnapshotError("not the state of a pipeline")
        for name, value in state.items():
            held, of = _STATE[name]
            parts = value.values() if isinstance(value, dict) else ()
            if not isinstance(value, held) or not all(isinstance(part, of) for part in parts):
                raise snapshot.SnapshotError(f"{name} is not what a pipeline holds there")
            setattr(made, name, value)
        return made

    # --- inside --------------------------------------------------------------------------------------------------

    def _take(self, batch: Batch) -> None:
        self._count(batch)
        subjects = {batch.subject} if batch.subject != Subject() else set()
        for items in (
            batch.frames,
            batch.histograms,
            batch.spans,
            batch.requests,
            batch.open_steps,
            batch.events,
            batch.info,
        ):
            if items:
                subjects.update(item.subject for item in items)
        for subject in sorted(subjects):
            history = self.memory.get(subject.key)
            if history is None:
                if len(self.memory) >= MAX_SUBJECTS:
                    self.cut += 1
                    continue
                history = self.memory[subject.key] = History(subject)
                if subject.engine:
                    self.baselines[subject.key] = Baseline()
                    self.trackers[subject.key] = Tracker(subject, dict(self.config.scope))
            history.ingest(batch)

    def _count(self, batch: Batch) -> None:
        key = f"{batch.source}|{batch.role}|{batch.subject.key}"
        old = self.seen.get(key)
        if old is None and len(self.seen) >= MAX_SUBJECTS:
            self.cut += 1
            return
        polls, errors = (old.polls, old.errors) if old else (0, 0)
        last = batch.error[:200] if batch.error else (old.last_error if old else "")
        failed = 1 if batch.error else 0
        self.seen[key] = SourceSeen(batch.source, batch.role, batch.subject.key, polls + 1, errors + failed, last)

    def _window(self, history: History) -> Window:
        others = self.memory.values()
        gpus = tuple(h for h in others if h.subject.gpu and self._serves(h, history.subject))
        hosts = tuple(h for h in others if h.subject.host)
        model = history.info.get("model", "")
        return Window(self.now, history, gpus, self.baselines[history.subject.key], self.config.slo_for(model), hosts)

    def _serves(self, device: History, engine: Subject) -> bool:
        """Which device serves which engine: config and map say; a lone engine with a lone device needs neither."""
        mapped = device_map.engines_of(device.info)
        if mapped is not None and engine.engine in mapped:
            return True
        for target in self.config.engines:
            if target.name == engine.engine and target.gpus:
                return device.subject.gpu in target.gpus
        if mapped is not None:
            return False
        engines = sum(1 for h in self.memory.values() if h.subject.engine)
        devices = sum(1 for h in self.memory.values() if h.subject.gpu)
        return engines == 1 and devices == 1

    def _judge(self, key: str, history: History, blind: list[Blind]) -> Judged:
        w = self._window(history)
        derived.write(w)
        self._count_slo(key, w)
        life = lifecycle(w, self.config.warm_up_s, self.config.maintenance)
        found = self._ask_rules(w, key, blind) if life not in ("loading", "sleeping") else []
        if life == "loading":
            blind += [Blind(s, ("engine: has not answered yet",), r.opens_eyes, key) for s, r in self.rules.items()]
        self.states[key] = _state(w, life)
        sure = tuple(f for f in found if f.confidence >= 0.5)
        return Judged(w, sure, tuple(f for f in found if f.confidence < 0.5), harm(w), life)

    def _ask_rules(self, w: Window, key: str, blind: list[Blind]) -> list[Finding]:
        found: list[Finding] = []
        for stem, rule in self.rules.items():
            try:
                finding = rule.check(w, self.params[stem])
            except Missing as e:
                blind.append(Blind(stem, (f"{e.signal}: {e.why}",), rule.opens_eyes, key))
                continue
            except Exception as e:
                self.failed_rules[stem] = self.failed_rules.get(stem, 0) + 1
                blind.append(Blind(stem, (f"the rule failed: {type(e).__name__}: {e}"[:200],), "report this", key))
                continue
            if finding is not None:
                found.append(finding)
        return found

    def _count_slo(self, key: str, w: Window) -> None:
        """From the engine's histograms, which count every request; from spans where it has none."""
        counts = self.slo.setdefault(key, {name: [0.0, 0.0] for name in _OBJECTIVES})
        fresh = w.history.finished.take_fresh()
        for column, (name, (histogram, limit)) in enumerate(_OBJECTIVES.items()):
            limit_s = limit(w.slo)
            if w.has_histogram(histogram):
                counts[name] = list(w.observed_so_far(histogram, limit_s))
                continue
            known = [f[column] for f in fresh if not math.isnan(f[column])]
            counts[name][0] += len(known)
            counts[name][1] += sum(1 for seconds in known if seconds <= limit_s)

    def _learn(self, key: str, judged: Judged) -> None:
        baseline = self.baselines[key]
        if not baseline.due(self.now):
            return
        figures = derived.figures(judged.window)
        baseline.note(self.now, figures)
        if judged.lifecycle == "serving" and not judged.harm.felt and not self.trackers[key].open:
            baseline.learn(self.now, figures)
        else:
            baseline.learned_at = self.now

    def _incidents(self) -> list[Incident]:
        return [i for k, t in self.trackers.items() for i in t.all(self._judged.get(k), self.rules)]


def _state(w: Window, life: Any) -> EngineState:
    answers = w.once(gpu), rhythm_state(w), w.once(queue), w.once(latency), moved(w)
    return EngineState(w.subject, w.now, *answers, life, line(*answers, life))


def _params(rule: Rule, given: dict[str, Any]) -> Any:
    return msgspec.convert(given, rule.params)


def _sorted(incidents: list[Incident]) -> tuple[Incident, ...]:
    rank = {"page": 0, "ticket": 1, "info": 2}
    return tuple(sorted(incidents, key=lambda i: (rank[i.severity], i.onset_at, i.rule)))


def _structs() -> dict[str, type]:
    from . import model

    return {
        n: c
        for n, c in vars(model).items()
        if isinstance(c, type) and issubclass(c, msgspec.Struct) and c is not msgspec.Struct
    }


_STATE: dict[str, tuple[type, type]] = {
    "memory": (dict, History),
    "baselines": (dict, Baseline),
    "trackers": (dict, Tracker),
    "seen": (dict, SourceSeen),
    "slo": (dict, dict),
    "states": (dict, EngineState),
    "now": (float, float),
    "cut": (int, int),
}
"""The parts of the state: their type, and what they hold where they are dicts."""
_CLASSES: dict[str, type] = {
    **_structs(),
    **{
        c.__name__: c
        for c in (
            Arrivals,
            Baseline,
            FinishedRequests,
            History,
            HistogramSeries,
            OpenIncident,
            Pending,
            Tier,
            Tracker,
        )
    },
}
"""What a snapshot may hold."""
assert np.dtype("<f8") == np.float64
