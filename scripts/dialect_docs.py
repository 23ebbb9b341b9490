"""The generated parts of docs/engines.md: what each engine's page says, under which names, and how far it can be trusted."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwatch.dialects import all_dialects
from gpuwatch.dialects.dialect import ENGINE_SIGNALS, Dialect
from gpuwatch.dialects.reading import Distribution, Mean, Reading, Roster, Term

_ORDER = ("vllm", "sglang", "trtllm", "triton", "tgi", "llamacpp", "lmdeploy", "dynamo", "shim")
_MARK = {"live": "●", "at_finish": "◐", "stale_possible": "◐", "lifetime": "◌"}
_TRUST = {"live": "", "at_finish": "at finish", "stale_possible": "may be old", "lifetime": "average since the start"}
_SIGN = {"sum": " + ", "product": " × ", "ratio": " ÷ ", "max": ", the largest of "}


def dialects() -> list[Dialect]:
    """Every dialect, the most used first."""
    found = all_dialects()
    return [found[name] for name in sorted(found, key=lambda n: (_ORDER.index(n) if n in _ORDER else 99, n))]


def pages() -> str:
    """Where each engine shows its page and what turns it on."""
    rows = [
        f"| {d.title} | `dialect = \"{d.name}\"` | `:{d.page.port}{d.page.path}` | {d.page.enable} "
        f"| {', '.join(f'`{prefix}`' for prefix in d.prefixes if prefix) or 'none'} "
        f"| {', '.join(f'`{label}`' for label in d.rank_labels)} |"
        for d in dialects()
    ]  # fmt: skip
    head = "| engine | name | usual page | switched on by | prefix | ranks by |\n|---|---|---|---|---|---|\n"
    return head + "\n".join(rows) + "\n"


def matrix() -> str:
    """Which signals each engine's page answers."""
    engines = dialects()
    head = f"| signal | {' | '.join(d.name for d in engines)} |\n|---|{':-:|' * len(engines)}\n"
    return head + "\n".join(f"| `{s}` | {' | '.join(_mark(d, s) for d in engines)} |" for s in ENGINE_SIGNALS) + "\n"


def names() -> str:
    """For each engine the names that a signal is read from, what to know, and why the others are missing."""
    return "\n".join(line for dialect in dialects() for line in _engine(dialect))


def _mark(d: Dialect, signal: str) -> str:
    if signal in d.signals:
        return _MARK[d.signals[signal].quality]
    if signal in d.histograms:
        return "●"
    if signal in d.means:
        return "mean"
    return "○" if signal in d.mapped else "–"


def _engine(d: Dialect) -> Iterator[str]:
    yield f"### {d.title}\n"
    yield "| signal | read from | trust |"
    yield "|---|---|---|"
    for signal in ENGINE_SIGNALS:
        if signal in d.mapped:
            said, trust = _source(d, signal)
            yield f"| `{signal}` | {said} | {trust} |"
    yield ""
    yield from (f"- {note}" for note in d.notes)
    if d.notes:
        yield ""
    missing: dict[str, list[str]] = {}
    for signal, reason in d.absent.items():
        missing.setdefault(reason, []).append(f"`{signal}`")
    yield "Not on its page:\n"
    yield from (f"- {', '.join(signals)}: {reason}." for reason, signals in missing.items())
    yield ""


def _source(d: Dialect, signal: str) -> tuple[str, str]:
    if signal in d.signals:
        choices = d.signals[signal].choices
        trust = " or ".join(dict.fromkeys(_TRUST[c.quality] or "live" for c in choices))
        return "<br>else ".join(_reading(c) for c in choices), "" if trust == "live" else trust
    if signal in d.histograms:
        return _distribution(d.histograms[signal]), ""
    if signal in d.means:
        return _mean(d.means[signal]), "mean only"
    if signal in d.inferred:
        return f"worked out: {d.inferred[signal]}", ""
    roster = next((r for r in d.rosters if signal in (r.lists | r.numbers)), None)
    if roster is not None:
        return _roster(roster, signal), ""
    return ", ".join(f"labels of `{name}`" for facts in d.facts for name in facts.names), ""


def _reading(reading: Reading) -> str:
    said = _SIGN[reading.combine].join(_term(term) for term in reading.terms)
    return said if reading.factor == 1 else f"{said} × {reading.factor:g}"


def _term(term: Term) -> str:
    said = " / ".join(f"`{name}`" for name in term.names)
    wanted = [f"{label}={'|'.join(values)}" for label, values in term.where.items()]
    wanted += [f"{label}≠{'|'.join(values)}" for label, values in term.unless.items()]
    return f"{said} ({', '.join(wanted)})".replace("|", "\\|") if wanted else said


def _distribution(distribution: Distribution) -> str:
    said = _term(Term(distribution.names, distribution.where))
    return said if distribution.factor == 1 else f"{said} × {distribution.factor:g}"


def _mean(mean: Mean) -> str:
    return f"{_reading(mean.sum)} over {_reading(mean.count)}"


def _roster(roster: Roster, signal: str) -> str:
    label = (roster.lists | roster.numbers)[signal]
    return f"label `{label}` of the newest `{roster.names[0]}`"
