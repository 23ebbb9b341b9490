"""Asks a Prometheus for a span of time and judges every replica that it finds there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import msgspec
from msgspec.structs import replace

from ...config import Config, EngineTarget
from ...dialects import all_dialects, detect
from ..examine import Answer
from ..host_page import HOST_NAMES
from ..judgement import Progress, judge_calls
from ..material import Found, Material, MaterialError, cadence_s, calls
from ..pages import PageBook, look_of
from ..times import point_in_time
from . import pool
from .client import PrometheusClient, Samples, headers_from
from .rebuilt import pages
from .replicas import (
    MAX_REPLICAS,
    Replica,
    find_devices,
    find_replicas,
    gpu_selector,
    matchers,
    sentinel_selector,
)

Span = tuple[float, float]

_SLOW_S = 4.5
"""A scrape that failed after so long had no answer; an earlier one was refused."""
_PROCESS = frozenset(name for name in HOST_NAMES if name.startswith("process_"))
_CONTAINER = frozenset(name for name in HOST_NAMES if name.startswith("container_"))
_NODE = frozenset(name for name in HOST_NAMES if name.startswith("node_"))


class Asked(msgspec.Struct, frozen=True):
    """What the user asks for: times as written, matchers as in PromQL, a step or None for the samples as scraped."""

    url: str
    since: str
    until: str = "now"
    match: str = ""
    step_s: float | None = None
    auth_file: str = ""


def ask_prometheus(asked: Asked, config: Config, now: float, progress: Progress = lambda _: None) -> Answer:
    """Judge what a Prometheus has scraped. `now` is what relative times count from. MaterialError for what cannot be."""
    since, until = _span(asked, now)
    with PrometheusClient(asked.url, headers_from(asked.auth_file)) as client:
        match = asked.match.strip().strip("{}").strip().rstrip(",")
        replicas = find_replicas(client, _sentinels(), match, since, until)
        if not replicas:
            raise MaterialError(f"{asked.url}: {_nothing(match, since, until)}")
        orphans = find_devices(client, replicas, since, until)
        notes = _notes(client, replicas, orphans)
        members: list[pool.Member] = []
        found: list[Found] = []
        for n, replica in enumerate(replicas[:MAX_REPLICAS]):
            share = (n / len(replicas), 1 / len(replicas))
            member, seen = _member(client, replica, asked.step_s, (since, until), config, _part(progress, *share))
            members.append(member)
            found.append(seen)
        down = _never_up(client, replicas, since, until)
        notes += [f"{asked.url}: {warning}" for warning in client.warnings]
        if client.native:
            notes.append(f"{asked.url}: {client.native} native histograms are not read: classic ones are needed")
    if len(members) == 1 and not down:
        return Answer(members[0].judged, tuple(found), tuple(notes))
    cadence = next((one.cadence_s for one in found if one.cadence_s == one.cadence_s), math.nan)
    lines = pool.report(members, down, until, cadence)
    return Answer(pool.merged(members), tuple(found), tuple(notes), tuple(lines))


def _span(asked: Asked, now: float) -> tuple[float, float]:
    if not asked.since:
        raise MaterialError("--from: needed with --prometheus, e.g. --from -2h")
    times = []
    for option, text in (("--from", asked.since), ("--to", asked.until)):
        try:
            times.append(point_in_time(text, now))
        except ValueError as error:
            raise MaterialError(f"{option}: {error}") from error
    if not times[0] < times[1]:
        raise MaterialError("--from: is not before --to")
    return times[0], times[1]


def _sentinels() -> frozenset[str]:
    """The names that identify an engine, whichever it is."""
    return frozenset(name for d in all_dialects().values() for prefix in d.prefixes for name in d.sentinels(prefix))


def _member(
    client: PrometheusClient, replica: Replica, step_s: float | None, span: Span, config: Config, progress: Progress
) -> tuple[pool.Member, Found]:
    """Everything of one replica, read and judged."""
    material = Material(replica.name)
    book = PageBook(replica.name, host=replica.host or replica.name)
    times: list[float] = []
    for at, page in _engine_pages(client, replica, step_s, span):
        material.add(at, book.read(page, at))
        times.append(at)
    down = _down(client, replica, span, book, material)
    for selector, kept in _beside(replica):
        for at, page in pages(client.samples(selector, *span, step_s), kept):
            material.add(at, book.read(page, at))
    mine = EngineTarget(url="http://prometheus", name=replica.name, gpus=replica.gpus)
    judged = judge_calls(calls(material.items), replace(config, engines=(mine,)), progress, int(span[1] - span[0]) + 1)
    material.saw(replica.name, look_of(book), times)
    found = material.found[0]
    model = next((i.labels["model"] for _, b in material.items for i in b.info if i.labels.get("model")), "")
    figures = pool.figures(material.items)
    return pool.Member(replica.name, model, judged, figures, found.since, found.until, *down), found


def _engine_pages(
    client: PrometheusClient, replica: Replica, step_s: float | None, span: Span
) -> Iterator[tuple[float, bytes]]:
    """The pages of its target. Which dialect speaks there decides what is asked for."""
    there = {labels.get("__name__", "") for labels in client.series([f"{{{replica.selector}}}"], *span)}
    spoken = detect(there)
    if spoken is None:
        return
    dialect, prefix = spoken
    wanted = (dialect.sample_names(prefix) | _PROCESS) & there
    kept = frozenset((*dialect.rank_labels, *dialect.copies, *dialect.totals, *dialect.model_labels))
    yield from pages(client.samples(sentinel_selector(wanted, replica.selector), *span, step_s), kept)


def _beside(replica: Replica) -> Iterable[tuple[str, frozenset[str]]]:
    """Selectors for its devices, its container and its node, with the labels that their readers need."""
    if replica.gpus:
        yield gpu_selector(replica), frozenset({"hostname"})
    if replica.pod:
        where = {"pod": replica.pod} | {k: replica.target[k] for k in ("namespace",) if k in replica.target}
        yield sentinel_selector(_CONTAINER, matchers(where)), frozenset({"container", "pod"})
    if replica.node:
        yield sentinel_selector(_NODE, matchers(replica.node)), frozenset()


def _down(
    client: PrometheusClient, replica: Replica, span: Span, book: PageBook, material: Material
) -> tuple[float, float]:
    """Add the looks that failed (`up` 0). Returns for how long (s) and since when."""
    wanted = {k: v for k, v in replica.target.items() if k in ("job", "instance", "namespace", "cluster")}
    if "instance" not in wanted:
        return 0.0, math.nan
    samples = client.samples(sentinel_selector(("up", "scrape_duration_seconds"), matchers(wanted)), *span)
    took = dict(_points(samples, "scrape_duration_seconds"))
    looks = sorted(_points(samples, "up"))
    failed = [at for at, up in looks if up == 0]
    for at in failed:
        took_s = took.get(at, 0.0)
        why = f"the scrape timed out after {took_s:.0f} s" if took_s >= _SLOW_S else "the scrape was refused"
        material.add(at, [book.failed(at, f"{why} (up 0)", took_s)])
    pace_s = cadence_s([at for at, _ in looks])
    return (len(failed) * pace_s if pace_s == pace_s else float(bool(failed))), (failed[0] if failed else math.nan)


def _never_up(client: PrometheusClient, replicas: list[Replica], since: float, until: float) -> list[str]:
    """Targets of the same jobs that never showed an engine and were down."""
    jobs = sorted({r.target["job"] for r in replicas if "job" in r.target})
    known = {(r.target.get("job"), r.target.get("instance")) for r in replicas}
    lines = []
    for job in jobs:
        for one in client.samples(f"up{{{matchers({'job': job})}}}", since, until):
            target = (one.labels.get("job"), one.labels.get("instance"))
            if target not in known and one.values and all(float(v) == 0 for v in one.values):
                lines.append(f"{one.labels.get('pod') or target[1]}: down all the time ({len(one.at)} scrapes failed)")
    return lines[:40]


def _points(samples: Iterable[Samples], name: str) -> Iterator[tuple[float, float]]:
    for one in samples:
        if one.labels.get("__name__") == name:
            yield from zip(one.at, map(float, one.values), strict=True)


def _notes(client: PrometheusClient, replicas: list[Replica], orphans: int) -> list[str]:
    notes = []
    if len(replicas) > MAX_REPLICAS:
        notes.append(
            f"{client.url}: {len(replicas)} replicas; the first {MAX_REPLICAS} are judged: narrow it with --match"
        )
    if orphans:
        notes.append(
            f"{client.url}: {orphans} GPUs are left out: no pod label says whose they are, or their host has several replicas"
        )
    return notes


def _nothing(match: str, since: float, until: float) -> str:
    where = f" with {{{match}}}" if match else ""
    engines = ", ".join(d.title for d in all_dialects().values())
    return (
        f"no series of an engine{where} between {since:.0f} and {until:.0f}: looked for {engines}; is the engine's"
        " page scraped, and under its own names?"
    )


def _part(progress: Progress, begin: float, share: float) -> Progress:
    return lambda done: progress(begin + share * done)
