"""`gpuwatch doctor`: look at everything that is configured for a few seconds and say what can be seen.

For each source: whether it answers, and how fast. For each engine: what it is. For each rule: whether it is blind, what
it lacks, and the one change that would open its eyes.
"""

from __future__ import annotations

import asyncio
import platform

import msgspec

from ..clock import WallClock
from ..config import Config
from ..model import Batch, Blind
from ..recording.quantize import quantized
from .devices import DeviceLook, lines
from .devices import look_at as look_at_devices
from .drivers import driver_wanted
from .engine_page import EngineLook, look_at
from .machine import HostLook
from .machine import lines as host_lines
from .machine import look_at as look_at_host
from .outlook import Continuation

_MARK = {True: "ok", False: "--"}


class SourceSaid(msgspec.Struct, frozen=True):
    """One source: how many looks, how many failed, the time that one takes, the last error."""

    name: str
    role: str
    looks: int
    failed: int
    takes_s: float
    error: str


class Report(msgspec.Struct, frozen=True):
    """What the doctor found. `engines`: what each says of itself. `seeing`: rules that can judge each engine.

    `soon`: rule → subject → seconds, where a rule can judge once it has looked for longer than the doctor did.

    `pages`: what answers at each engine's address, and what would help where that is not its page. `devices`: what their
    pages lack, and which engine has which. `machine`: what of processes and containers is not seen.
    """

    sources: list[SourceSaid]
    engines: dict[str, dict[str, str]]
    blind: list[Blind]
    seeing: list[str]
    pages: list[EngineLook] = []
    devices: DeviceLook = DeviceLook([], [], [])
    machine: HostLook = HostLook()
    soon: dict[str, dict[str, float]] = {}


async def examine(config: Config, seconds: int) -> Report:
    """Poll every source once a second, judge as the agent would, and report."""
    from ..agent.agent import build_sources
    from ..pipeline import Pipeline
    from ..sources.poll import Poller

    timeout_s = config.lanes.timeout_s
    pages = await asyncio.gather(*(look_at(t.name, t.url, timeout_s, t.dialect) for t in config.engines))
    clock = WallClock()
    pollers = [Poller(s, config.lanes.timeout_s) for s in build_sources(config, clock, platform.node() or "host")]
    pollers = [p for p in pollers if p.source.role not in ("spans", "changes")]
    pipeline = Pipeline(config)
    said: dict[str, dict[str, str]] = {target.name: {} for target in config.engines}
    continuation = Continuation()
    at = 0.0
    try:
        for second in range(seconds):
            if second:
                await asyncio.sleep(1.0)
            now = clock.now()
            batches: list[Batch] = list(await asyncio.gather(*(poller.poll(now) for poller in pollers)))
            at = float(int(clock.now()))
            pipeline.step(*quantized(at, batches))
            continuation.hear(batches)
            for info in (info for batch in batches for info in batch.info if info.subject.engine):
                said.setdefault(info.subject.engine, {}).update(info.labels)
    finally:
        await asyncio.gather(*(poller.aclose() for poller in pollers), return_exceptions=True)
    sources = [
        SourceSaid(
            p.source.name, p.source.role, p.counts.polls, p.counts.polls if absent else p.counts.errors,
            p.counts.busy_s / max(1, p.counts.polls), absent or p.counts.last_error,
        )
        for p, absent in ((p, getattr(p.source, "absent", "")) for p in pollers)
    ]  # fmt: skip
    devices = look_at_devices([poller.source for poller in pollers], float(seconds), driver_wanted(config))
    machine = look_at_host(poller.source for poller in pollers)
    outlook = continuation.look_ahead(pipeline, at)
    dark = {b.rule for b in outlook.blind} | set(outlook.soon)
    seeing = [stem for stem in pipeline.rules if stem not in dark] if config.engines else []
    return Report(sources, said, list(outlook.blind), seeing, list(pages), devices, machine, outlook.soon)


def to_json(report: Report) -> str:
    """The report for machines."""
    return msgspec.json.encode(report).decode() + "\n"


def text(report: Report) -> str:
    """The report for people."""
    out = ["sources"]
    for s in report.sources:
        well = s.failed < s.looks
        what = f"{s.takes_s * 1e3:.1f} ms a look" if well else _printable(s.error)
        out.append(f"  {_MARK[well]}  {s.name:<28} {what}")
    out += ["", "pages"]
    for page in report.pages:
        out.append(f"  {_MARK[page.finding == 'page']}  {_printable(page.url)}: {_printable(page.says)}")
        if page.change:
            out.append(f"      {_printable(page.change)}")
    out += ["", "engines"]
    for name, facts in report.engines.items():
        known = [f"{key} {facts[key]}" for key in ("dialect", "version", "model", "max_num_seqs") if facts.get(key)]
        out.append(f"  {_printable(name)}: {_printable(', '.join(known)) or 'says nothing of itself'}")
    out += map(_printable, lines(report.devices))
    out += map(_printable, host_lines(report.machine))
    out += ["", "rules"]
    if not report.engines:
        out.append("  no engine is watched here: agents beside engines judge them")
    out += [f"  ok  {stem}" for stem in report.seeing]
    for stem, subjects in report.soon.items():
        out += [f"  ok  {stem} ({_printable(who)}): after {s:.0f} s more" for who, s in subjects.items()]
    for b in report.blind:
        out.append(f"  --  {b.rule} ({b.subject}): blind, lacks {'; '.join(b.missing)}")
        if b.cure:
            out.append(f"      {b.cure}")
    return "\n".join(out) + "\n"


def _printable(words: str) -> str:
    """Engine-supplied text may hold escape codes: a terminal gets none of them."""
    return "".join(c if c.isprintable() else "�" for c in words)[:300]
