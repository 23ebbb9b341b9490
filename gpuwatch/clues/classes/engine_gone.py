"""An engine that served and whose page answers no more: a crash, a kill or a stop that nobody's log explains.

Looks that fail are data. What is known is when it last answered and who was inside then; whether the process died, was
killed or was stopped on purpose, no page can tell. An engine that idled before may just as well have been scaled down:
nothing is said. Where a log says why it ended, the log is believed.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..clue import Clue, not_this, told
from ..moments import known, moments
from ..sighting import Sighting
from ..track import Sight

LOOKS, FOR_S = 3, 15.0
FRESH_S = 30.0
"""Tokens that flowed so shortly before the last answer were for somebody."""
SAID = ("engine_dead", "process_crashed", "killed_for_memory", "stopped", "out_of_memory", "start_failed")


def clues(s: Sighting) -> Iterator[Clue]:
    """Every engine that answered, had work, and fails every look since."""
    for seen in s.engines:
        found = _gone(s, seen)
        if found is not None:
            yield found


def _gone(s: Sighting, seen: Sight) -> Clue | None:
    looks = moments(seen)
    if seen.fails < LOOKS or not looks or seen.said(*SAID):
        return None
    gone_s = seen.error_at - seen.answered_at
    if not gone_s >= FOR_S or s.last_at - seen.error_at > gone_s:
        return None
    inside = looks[-1].inside
    flowed = any(m.moves for m in looks if m.at >= looks[-1].at - FRESH_S)
    if not inside and not flowed:
        return None
    who = f"{inside:.0f} requests were inside" if inside else "requests had been answered just before"
    return Clue(
        "engine_crash",
        seen.subject,
        0.55,
        f"The engine's page has not answered for {gone_s:.0f} s ({seen.fails} looks), and {who}: it is gone. Whether it "
        "crashed, was killed or was stopped on purpose, its page cannot tell.",
        seen.answered_at,
        "gone",
        "page",
        "service",
        evidence=(
            told(seen, "looks that failed since", float(seen.fails), float(LOOKS), ">=", gone_s),
            told(seen, "req_running", looks[-1].running),
            told(seen, "req_waiting", known(looks[-1].waiting)),
            told(seen, "error", seen.error[:80]),
        ),
        ruled_out=(not_this("engine_hang", "the page of an engine that hangs answers; this one does not"),),
        explains=("overload",),
        look_next="the end of its log, the exit code (137: killed), the kernel's log, and who deployed just then",
    )
