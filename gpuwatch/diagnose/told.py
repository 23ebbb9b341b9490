"""The answer as text: what was found, what could not be seen and the one change that would show it, then the verdict."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from msgspec.structs import replace

from ..incidents.verdict import NOTHING
from ..incidents.verdict import text as verdict_text
from ..model import Blind, EngineState, Verdict
from ..rules import load_rules
from .examine import Answer
from .material import Found

WIDTH = 100
MAX_BLIND = 3
MAX_RULES = 4
UNJUDGED = "Nothing was found, and no rule could judge: that is no proof of health."


def text(answer: Answer) -> str:
    """One screen, as a rule."""
    out = ["found"]
    for one in answer.found:
        out += _wrapped(_found(one))
    for note in answer.notes:
        out += _wrapped(f"note: {note}")
    unseen = [*answer.judged.cannot_tell, *_blind(answer.judged.blind)]
    if unseen:
        out += ["", "not seen"]
        for line in unseen:
            out += _wrapped(line)
    if answer.pool:
        out += ["", "pool"]
        for line in answer.pool:
            out += _wrapped(line)
    verdict = answer.verdict
    state = None if verdict.state is not None and _says_nothing(verdict.state) else verdict.state
    shown = replace(_one_of_each(answer), blind=(), state=state)  # who is blind is said above, by cure
    judged = {one.rule for one in verdict.blind} < set(load_rules())
    return (
        "\n".join(out)
        + "\n\n"
        + verdict_text(shown, WIDTH, dated=_dated(answer), nothing=NOTHING if judged else UNJUDGED)
    )


def _says_nothing(state: EngineState) -> bool:
    """Whether none of the questions that one look could answer is answered."""
    return state.gpu.mode == state.rhythm.kind == state.queue.trend == "unknown"


def _dated(answer: Answer) -> bool:
    """Whether anything that was given says when it was; a capsule or a capture always does."""
    timed = any(one.since == one.since or one.what.startswith(("capsule", "capture")) for one in answer.found)
    return timed or not answer.found


def _one_of_each(answer: Answer) -> Verdict:
    """The verdict to show: of a pool, the worst incident of each class stands for all."""
    if not answer.pool:
        return answer.verdict
    worst = {i.rule: i for i in reversed(answer.verdict.incidents)}
    return replace(answer.verdict, incidents=tuple(i for i in answer.verdict.incidents if worst[i.rule] is i))


def _found(one: Found) -> str:
    parts = [f"{one.name}: {one.what}"]
    if one.looks > 1:
        parts.append(f"{one.looks} looks")
    if one.since == one.since:
        parts.append(_span(one.since, one.until))
    if one.cadence_s == one.cadence_s:
        parts.append(f"every {one.cadence_s:.3g} s")
    return ", ".join(parts)


def _span(since: float, until: float) -> str:
    """Dates once, times in UTC; a log without a date begins in 1970 and shows times since its start."""
    if since < 86_400 * 365:
        return f"{until - since:.0f} s long" if until > since else "at an unknown time"
    first, last = datetime.fromtimestamp(since, UTC), datetime.fromtimestamp(until, UTC)
    if first == last:
        return f"{first:%Y-%m-%d %H:%M:%S} UTC"
    end = f"{last:%H:%M:%S}" if first.date() == last.date() else f"{last:%Y-%m-%d %H:%M:%S}"
    return f"{first:%Y-%m-%d %H:%M:%S} – {end} UTC"


def _blind(blind: Sequence[Blind]) -> Iterable[str]:
    """Blind rules by what would open their eyes, one line for each cure; one line for all where most rules are blind."""
    by_cure: dict[str, dict[str, set[str]]] = {}
    for one in blind:
        what = one.missing[0] if one.missing else "not known"
        by_cure.setdefault(one.cure, {}).setdefault(what, set()).add(one.rule)
    ranked = sorted(by_cure.items(), key=lambda c: -sum(map(len, c[1].values())))
    if len(ranked) > MAX_BLIND:
        rules = sorted({one.rule for one in blind})
        yield (
            f"Rules that need more than this to judge: {', '.join(rules)} → let the agent read the engine's page at 1 Hz, and "
            "its step ring where there is one; --json says what each lacks"
        )
        return
    for cure, missing in ranked:
        lacks = "; ".join(f"{_some(sorted(rules))} ({what})" for what, rules in sorted(missing.items())[:MAX_RULES])
        yield f"{lacks}" + (f" → {cure}" if cure else "")


def _some(words: Sequence[str]) -> str:
    more = len(words) - MAX_RULES
    return ", ".join(words[:MAX_RULES]) + (f" and {more} more" if more > 0 else "")


def _wrapped(words: str) -> list[str]:
    clean = "".join(c if c.isprintable() else "�" for c in words)
    return textwrap.wrap(clean, WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=True)
