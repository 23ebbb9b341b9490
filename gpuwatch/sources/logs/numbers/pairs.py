"""Pairs of a name and a number, as stats lines are made of: `#running-req: 36`, `iter = 7`, `Accepted: 66 tokens`.

Names come back in lower case without `#`. Bounded: only a piece of the line is looked at, names have 48 characters.
"""

from __future__ import annotations

import re

from .numbers import NUMBER

PAYLOAD_CHARS = 2048
_PAIR = re.compile(rf"#?([A-Za-z_][A-Za-z_ /\-()]{{0,47}}?)'? ?[:=] ?(-?{NUMBER})(?!\d)(ms|%)?")


def pairs(text: str, at: int = 0) -> dict[str, float]:
    """Name → number of the pairs behind `at`. A percentage counts as its number, milliseconds as seconds."""
    found: dict[str, float] = {}
    for name, number, unit in _PAIR.findall(text[at : at + PAYLOAD_CHARS]):
        value = float(number)
        found.setdefault(name.strip().lower(), value / 1000 if unit == "ms" else value)
    return found
