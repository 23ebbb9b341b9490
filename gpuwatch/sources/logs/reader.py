"""Follows the lines of one log, offline or live, and turns them into readings, notices and facts.

Bytes go in, numbers come out: nothing of a line's text is kept beyond the line that may be torn. What is cut is counted
under a name in `cut`.
"""

from __future__ import annotations

import math
from collections import Counter

import msgspec

from ...catalog import check_value
from .found import Facts, Found, Notice, Observed, Slot, Stats
from .kinds import NOTICES, WORST_BY
from .lines.prefixes import Line, strip
from .lines.repair import Joiner, records
from .lines.timeline import Timeline
from .lines.unwrap import Unwrapper
from .numbers.distributions import Distributions
from .numbers.pace import Pace
from .numbers.slots import Slots
from .phrases import look_at, says_something, without_clients_text
from .told import NoticeKey, Told, badness

LINE_BYTES = 64 * 1024
MOST_RANKS = 64
WITH_PREFIX = ("vllm_v0", "vllm_v1", "sglang", "trtllm")
"""Once such lines have come with a prefix, one without is somebody's text."""
WORTH_TELLING_S = 1.0
"""Live, steps and requests that took less are no notices."""
STOPPING_S = 120.0
"""After it was told to stop, an engine's dead core is no crash."""
ONE_RESTART_S = 120.0
"""The processes of one restart all come back with new pids."""


class LogReader:
    """Reads one engine's log. `lookback`: offline, where a later line may say what an earlier second was. `alone`: nothing
    else tells of restarts.

    `lines` counts lines, `read` those that said something, `printed_by` lines by engine. `told` is for the caller to
    take (`take_told`).
    """

    def __init__(self, engine: str, lookback: bool = False, start_at: float | None = None, alone: bool = True) -> None:
        self.engine = engine
        self.timeline = Timeline(start_at)
        self.lines = self.read = 0
        self.cut: Counter[str] = Counter()
        self.printed_by: Counter[str] = Counter()
        self.told = Told()
        self._lookback = lookback
        self._alone = alone
        self._unwrap = Unwrapper()
        self._joiner = Joiner()
        self._paces: dict[int, Pace] = {}
        self._pids: dict[str, set[int]] = {}
        self._restarted_at = self._stopped_at = -math.inf
        self._slots = Slots()
        self._distributions = Distributions()
        self._prefixes: set[str] = set()  # policies whose stats lines come with a prefix

    @property
    def torn(self) -> int:
        """Lines that were put together again."""
        return self._joiner.torn

    @property
    def diluted(self) -> int:
        """Rates that counted over a pause and were dropped."""
        return sum(pace.diluted for pace in self._paces.values())

    def feed(self, raw: bytes, arrived_at: float | None = None) -> None:
        """Take one line. `arrived_at` (unix seconds): it is read as it is written, and that is its time."""
        self.lines += 1
        for text in self._unwrap.feed(shortened(raw, self.cut)):
            self._text(text, arrived_at)

    def flush(self, arrived_at: float | None = None, ended: bool = False) -> None:
        """No line follows for now, so that a stats line is whole. `ended`: none ever will, and pieces are whole, too."""
        for text in self._unwrap.flush() if ended else ():
            self._text(text, arrived_at)
        for line in self._joiner.flush():
            self._whole(line, arrived_at)

    def advance(self, until: float) -> None:
        """Tell the whole seconds before `until` as far as the log vouches for them."""
        for rank, pace in self._paces.items():
            self.told.add_rows(rank, pace.rows(until))

    def end(self) -> None:
        """Nothing more will come: what was said last does not stand any more."""
        for pace in self._paces.values():
            pace.end()

    def take_over(self, before: LogReader, written_at: float, now: float) -> None:
        """Go on where another reader ended whose last line was written at `written_at`: facts, and numbers by rank."""
        facts = before.told.facts
        if facts:
            self.told.add_facts(now, facts)
        ended_at = before.timeline.now
        for rank, pace in before._paces.items():
            age_s = ended_at - pace.line_at
            if not math.isnan(age_s):
                self._paces[rank] = pace.resumed(written_at - age_s, now)
        self._pids, self._prefixes, self._slots = before._pids, before._prefixes, before._slots

    def forget_rows(self) -> None:
        """Drop readings and notices that nobody wants; facts stay."""
        self.told.rows.clear()
        self.told.notices.clear()
        self.told.histograms.clear()

    def take_told(self) -> Told:
        """What has been told since the last call."""
        told, self.told = self.told, Told()
        return told

    def _text(self, text: str, arrived_at: float | None) -> None:
        text = without_clients_text(text)
        before: Line | None = None
        for record in records(text) if says_something(text) else [text]:
            line = strip(record)
            if before is not None and not line.prefixed:  # it shares a line with a record that has one
                line.stamp, line.prefixed = before.stamp, before.prefixed
            before = line
            for whole in self._joiner.feed(line, record):
                self._whole(whole, arrived_at)

    def _whole(self, line: Line, arrived_at: float | None) -> None:
        said = [(phrase, found) for phrase, found in look_at(line.text) if found] if says_something(line.text) else []
        found = [one for _, several in said for one in several]
        second_runs = self.timeline.counts["second_run"]
        at = self._place(line, arrived_at, found)
        if self.timeline.counts["second_run"] > second_runs or self._is_another_run(at, line):
            self._restart(at)
        self.read += bool(said)
        for phrase, _ in said:
            if phrase.engine:
                self.printed_by[phrase.engine] += 1
        for one in found:
            self._take(at, line, one)

    def _place(self, line: Line, arrived_at: float | None, found: list[Found]) -> float:
        if arrived_at is not None:
            return arrived_at
        if line.stamp is not None:
            return self.timeline.place(line.stamp)
        steps = [one.took_s for one in found if isinstance(one, Stats)]
        return self.timeline.carry_on(max(steps, default=0.0), counts=bool(found))

    def _take(self, at: float, line: Line, found: Found) -> None:
        if isinstance(found, Facts):
            self.told.add_facts(at, found.labels)
        elif isinstance(found, Notice):
            self._notice(at, line, found)
        elif isinstance(found, Observed):
            for histogram in self._distributions.add(self.engine, at, found.values):
                self.told.add_histogram(histogram)
        elif isinstance(found, Slot):
            self._stats(at, line, self._slots.take(found))
        elif self._is_true(line, found.policy):
            self._stats(at, line, found)

    def _is_true(self, line: Line, policy: str) -> bool:
        """Not a quotation (its neighbours have prefixes, it has none), and not a tensor-parallel twin."""
        if policy in WITH_PREFIX:
            if line.prefixed:
                self._prefixes.add(policy)
            elif policy in self._prefixes:
                self.cut["unprefixed"] += 1
                return False
        return not _is_twin(line)

    def _stats(self, at: float, line: Line, stats: Stats) -> None:
        rank = stats.rank if stats.rank is not None else line.rank or 0
        pace = self._paces.get(rank)
        if pace is None:
            if len(self._paces) >= MOST_RANKS:
                self.cut["ranks"] += 1
                return
            pace = self._paces[rank] = Pace(stats.policy, self._lookback)
        self.told.add_rows(rank, pace.take(at, self._possible(stats)))

    def _possible(self, stats: Stats) -> Stats:
        """Without numbers that are impossible for their signal."""
        kept = [
            {name: value for name, value in said.items() if check_value(name, value)}
            for said in (stats.gauges, stats.momentary, stats.counts, stats.totals)
        ]
        self.cut["impossible"] += stats.fields - len(stats.rates) - sum(map(len, kept))
        gauges, momentary, counts, totals = kept
        return msgspec.structs.replace(stats, gauges=gauges, momentary=momentary, counts=counts, totals=totals)

    def _notice(self, at: float, line: Line, notice: Notice) -> None:
        assert notice.kind in NOTICES, notice.kind
        if notice.kind == "engine_dead" and at - self._stopped_at < STOPPING_S:
            return  # a server that is told to stop prints the same tracebacks
        if notice.kind in ("stopped", "engine_dead"):
            self._stopped_at = at if notice.kind == "stopped" else self._stopped_at
            for pace in self._paces.values():
                pace.end()
        if notice.kind == "retraction" and _is_twin(line):
            return
        rank = notice.rank if notice.rank is not None else line.rank or 0
        detail = {"kind": notice.kind, **notice.detail}
        if line.tp_rank:
            detail["tp_rank"] = str(line.tp_rank)
        key = NoticeKey(math.floor(at), rank, "notice", tuple(detail.items()))
        if notice.kind in WORST_BY and not self._lookback and badness(key) < WORTH_TELLING_S:
            return  # live, the readings say as much
        if not self.told.add_notice(key):
            self.cut["notices"] += 1

    def _is_another_run(self, at: float, line: Line) -> bool:
        """The same process of the engine with a pid that it never had: two servers that share a log take turns."""
        if not line.pid or not line.process.startswith(("APIServer", "EngineCore")):
            return False
        if line.process not in self._pids and len(self._pids) >= 2 * MOST_RANKS:
            return False
        known = self._pids.setdefault(line.process, set())
        if line.pid in known or len(known) >= MOST_RANKS:
            return False
        known.add(line.pid)
        return len(known) > 1

    def _restart(self, at: float) -> None:
        if at - self._restarted_at < ONE_RESTART_S:
            return
        self._restarted_at = at
        for pace in self._paces.values():
            pace.end()
        second = math.floor(at)
        self.told.add_notice(NoticeKey(second, 0, "notice", (("kind", "restarted"),)))
        if self._alone:
            self.told.add_notice(NoticeKey(second, 0, "restart", (("how", "log"),)))


def _is_twin(line: Line) -> bool:
    """Tensor-parallel ranks all say what the first one says; data-parallel ones speak for themselves."""
    return line.rank is None and bool(line.tp_rank)


def shortened(raw: bytes, cut: Counter[str]) -> str:
    """The line as text: without its end, garbage replaced, a monstrous one without its middle."""
    raw = raw.rstrip(b"\r\n")
    if len(raw) > LINE_BYTES:
        cut["long_lines"] += 1
        raw = raw[: LINE_BYTES // 2] + b" " + raw[-LINE_BYTES // 2 :]
    return raw.decode("utf-8", "replace")
