"""Clients that leave, come back, or left without the engine knowing.

Aborts and new arrivals that feed each other make load of their own. Where the engine lost an abort (output arrives for a
request that nobody waits for), it decodes for nobody: busy devices and flowing tokens look like healthy load, completions
do not move.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..clue import Clue, counted, instead, not_this, told
from ..moments import known, moments
from ..sighting import Sighting
from ..track import Sight

MANY = 10.0
SHARE = 0.3


def clues(s: Sighting) -> Iterator[Clue]:
    """Every engine that works for nobody, or for the same clients again and again."""
    for seen in s.engines:
        yield from _orphans(seen)
        yield from _aborts(seen)


def _orphans(seen: Sight) -> Iterator[Clue]:
    said = seen.notices.get("orphan_output")
    if said is None or said.count < 3:
        return
    running = seen.last("req_running")
    flat = seen.growth("req_finished_total") == 0
    yield Clue(
        "retry_storm",
        seen.subject,
        0.8 if flat or said.count >= 20 else 0.65,
        f"{said.count} outputs came for requests whose client is gone and whose state is deleted: the abort never reached the "
        "scheduler, and requests that nobody waits for go on decoding"
        + (f" ({running:.0f} run, none completes)." if flat else "."),
        said.first_at,
        "work_without_client",
        "ticket",
        "service",
        evidence=(
            counted("orphan_output", said.count, said.last_at - said.first_at),
            told(seen, "req_running", running),
            told(seen, "req_finished_total growth", seen.growth("req_finished_total"), 0.0, "="),
        ),
        ruled_out=(
            not_this("overload", "work is done for nobody, not for too many"),
            not_this("engine_hang", "outputs are made"),
        ),
        instead=instead(("runaway_generation", 0.4)),
        explains=("overload", "long_context_kv_pressure", "runaway_generation"),
        named=True,
        look_next="requests running against connections open, and whether an abort by id has any effect",
    )


def _aborts(seen: Sight) -> Iterator[Clue]:
    looks = moments(seen)
    silent = _left_silently(seen)
    counted_ones = max(known(seen.growth("req_aborted_total")), float(seen.said("aborted", "client_disconnected")))
    left = max(counted_ones, silent)
    done, came = known(seen.growth("req_finished_total")), seen.growth("req_arrived_total")
    if left < MANY or left < SHARE * (left + done) or len(looks) < 2:
        return
    queue = max((m.waiting for m in looks if not math.isnan(m.waiting)), default=0.0)
    if queue < 1 and silent < max(2 * MANY, done):
        return  # clients come and go, and nobody waits for it
    again = (
        "each that comes back is load again"
        if queue >= 1
        else "with no queue this is the clients' choice or their time-out"
    )
    yield Clue(
        "retry_storm",
        seen.subject,
        0.5,
        f"{left:.0f} requests were given up by their clients against {done:.0f} that finished; {again}.",
        seen.first_at,
        "aborts",
        "ticket" if queue >= 1 else "info",
        "service",
        evidence=(
            told(seen, "requests given up", left, MANY, ">="),
            told(seen, "first tokens of requests that never finished", silent if silent > 0 else math.nan),
            told(seen, "req_finished_total growth", done),
            told(seen, "req_arrived_total growth", came),
            told(seen, "req_waiting, greatest", queue),
        ),
        instead=instead(("overload", 0.4) if queue >= 1 else ("healthy", 0.4)),
        look_next="arrivals against errors one client timeout earlier, and client timeouts against TTFT",
    )


def _left_silently(seen: Sight) -> float:
    """Requests that got a first token and neither finished nor run: vLLM counts a client that disconnects nowhere else."""
    first, last = seen.histograms.get("ttft_seconds", (None, None))
    done, running = seen.track("req_finished_total"), seen.track("req_running")
    if seen.engine_kind != "vllm" or first is None or last is None or done is None or running is None or done.falls:
        return 0.0
    return max(0.0, last.count - first.count - done.growth - max(0.0, running.last - running.first))
