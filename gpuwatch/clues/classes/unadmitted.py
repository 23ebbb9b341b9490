"""Clients wait where no gauge shows them: the engine moves nothing, and its front end holds more and more connections.

While a step does not end, requests that arrive are neither running nor waiting on the page: the scheduler has not taken
them. An engine that hangs so looks idle. What betrays it is the front end's own count of open descriptors, one a client,
or the front end's word that a worker does not take its work.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..clue import Clue, counted, instead, not_this, told
from ..moments import known, moments, progress
from ..sighting import Sighting
from ..track import Sight

FOR_S, LOOKS = 30.0, 3
MORE, SHARE = 8.0, 0.2
"""So many descriptors more, and such a share of those that were open: a scrape or a probe holds one or two."""
SIGNAL = "process_open_files"


def clues(s: Sighting) -> Iterator[Clue]:
    """Every engine that served, looks idle, and gathers connections."""
    for seen in s.engines:
        found = _gathers(s, seen)
        if found is not None:
            yield found


def _gathers(s: Sighting, seen: Sight) -> Clue | None:
    looks = moments(seen)
    moving = progress(seen, looks, s.last_at)
    if moving.says != "still" or not moving.moved_before or not moving.trusted:
        return None
    if moving.still_s < FOR_S or moving.looks < LOOKS or known(looks[-1].inside) > 0 or seen.fails:
        return None
    since = s.last_at - moving.still_s
    held = [v for at, look in seen.looks if at >= since and not math.isnan(v := look.get(SIGNAL, math.nan))]
    more = held[-1] - held[0] if held else 0.0
    if more < max(MORE, SHARE * held[0]) or held[-1] < max(held) - 0.1 * more:
        return None
    waits = seen.said("broadcast_block_wait")
    return Clue(
        "engine_hang",
        seen.subject,
        0.7 if waits else 0.55,
        f"Nothing has moved for {moving.still_s:.0f} s and no gauge shows a request, yet the front end holds {more:.0f} more "
        "connections than before: clients wait that the scheduler has not taken."
        + (" A worker does not take its work." if waits else ""),
        since,
        "unadmitted",
        "page",
        "service",
        evidence=(
            told(seen, "process_open_files", held[-1], held[0], "was", moving.still_s),
            told(seen, "req_running", looks[-1].running, 0.0, "="),
            told(seen, "req_waiting", looks[-1].waiting, 0.0, "="),
            *((counted("broadcast_block_wait", waits),) if waits else ()),
        ),
        ruled_out=(not_this("overload", "nothing moves, and nothing counts as waiting"),),
        instead=instead(("frontend_cpu_bottleneck", 0.3)),
        look_next="one request by hand with a time-out, and the stacks of the engine's core and its workers",
    )
