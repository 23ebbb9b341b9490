"""Stale telemetry: the numbers are old, partial or of somebody else, and say nothing about the service.

What shows it: a page without any engine's series; counters that fall and rise again (several processes answer one
address in turn); an exporter that says it lost its host engine; a device page that never changes, its energy counter
included; a utilisation of 0 on a MIG instance whose other engines are busy.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..clue import Clue, counted, instead, not_this, told
from ..sighting import Sighting
from ..track import Sight, Track

FROZEN_POLLS, FROZEN_S = 4, 100.0
"""An exporter renews its values every 30 s by default: three repeats are usual, a fourth after 100 s is not."""
BUSY = 0.05
NO_VALUES = "names without values"
_NO_VALUES_SAID = (
    "The page names its series and shows no value of any: the exporter runs and sees nothing that it could measure (no device, "
    "no process, no request), or what was copied lost the values."
)
_NO_SERIES_SAID = (
    "The page answers and holds no series of any known engine: either the engine's metrics live in another process "
    "(a front end without a shared metrics directory shows only its own python_* and process_* series), or this is "
    "another port's page."
)


def clues(s: Sighting) -> Iterator[Clue]:
    """Every sign that numbers cannot be trusted."""
    for seen in list(s.sights.values()):
        yield from _no_series(s, seen)
        yield from _several_processes(s, seen)
        if (lost := seen.notices.get("exporter_disconnected")) is not None:
            yield Clue(
                "stale_telemetry",
                seen.subject,
                0.85,
                f"The GPU exporter lost its host engine ({lost.count} messages over {lost.last_at - lost.first_at:.0f} s) "
                "and goes on to serve the last values it had: GPU numbers since then are frozen.",
                lost.first_at,
                "exporter_disconnected",
                picture="telemetry",
                named=True,
                evidence=(counted("exporter_disconnected", lost.count, lost.last_at - lost.first_at),),
                look_next="whether the energy counter moves between two scrapes",
            )
        if seen.subject.gpu:
            yield from _not_on_mig(seen)
            yield from _energy_stands(seen)
        elif seen.polls - seen.errors - seen.empty >= 1:
            yield from _frozen_page(s, seen)


def _no_series(s: Sighting, seen: Sight) -> Iterator[Clue]:
    strange = any(words in seen.error for words in ("recognises", "no engine series", "HTML page", NO_VALUES))
    if not strange or not seen.subject.engine or "req_running" in seen.tracks:
        return
    if _of_others(seen.error):
        yield _another_page(seen)
        return
    alive = [o for o in s.gpus if (t := o.track("gpu_util_ratio")) is not None and t.greatest > BUSY]
    yield Clue(
        "stale_telemetry",
        seen.subject,
        0.7 if alive else 0.6,
        _NO_VALUES_SAID if NO_VALUES in seen.error else _NO_SERIES_SAID,
        seen.error_at,
        "no_engine_series",
        picture="telemetry",
        evidence=(told(seen, "page", seen.error[:120]), told(seen, "looks at it", float(seen.errors))),
        look_next="the engine's own port, its metrics flag, and PROMETHEUS_MULTIPROC_DIR of its front end",
    )


def _of_others(error: str) -> bool:
    """Whether the page has series, and they are of something that is no engine, or none that is known."""
    return "recognises this page" in error and "the process's own" not in error and " 0 metrics" not in error


def _another_page(seen: Sight) -> Clue:
    """Of a router, a cache, a server around the engine, another engine: no fault of the service, and nothing to judge."""
    _, _, hint = seen.error.partition("bytes)")
    return Clue(
        "stale_telemetry",
        seen.subject,
        0.6,
        "The page answers, and its series are not of an engine that is known"
        + (f" ({hint.strip(' :')[:160]})" if hint.strip(" :") else "")
        + ": nothing of it could be read, so nothing is said of the service.",
        seen.error_at,
        "another_page",
        "info",
        "telemetry",
        evidence=(told(seen, "page", seen.error[:120]),),
        instead=instead(("healthy", 0.5)),
        look_next="the engine's own page: its port, and the flag or the environment variable that turns its metrics on",
    )


def _several_processes(s: Sighting, seen: Sight) -> Iterator[Clue]:
    said = seen.events.get("ambiguous")
    name, zigzag = _zigzag(seen)
    if said is None and zigzag is None:
        return
    first_at = said.first_at if said is not None else seen.first_at
    evidence = [told(seen, f"{name}, falls", float(zigzag.falls), 0.0, ">")] if zigzag is not None else []
    started = seen.track("process_start_seconds")
    restarts = "" if started is None else f"{started.moves} changes of the start time"
    yield Clue(
        "stale_telemetry",
        seen.subject,
        0.75,
        "Counters fall and rise again between looks at one address: several processes or replicas answer in turn, so "
        "rates and differences mean nothing.",
        first_at,
        "several_processes",
        picture="telemetry",
        evidence=(*evidence, told(seen, "looks", float(seen.count))),
        ruled_out=(
            not_this("engine_crash", f"after a restart counters begin near 0 and keep rising; {restarts}".rstrip("; ")),
        ),
        look_next="each process's own page, or one registry for all of them",
    )


def _zigzag(seen: Sight) -> tuple[str, Track | None]:
    """A counter that fell at least twice, or fell a little and is above where it was: no restart does that."""
    if seen.events.get("restart") is not None or not seen.subject.engine:
        return "", None
    for name in ("req_finished_total", "generated_tokens_total", "prompt_tokens_total", "steps_total"):
        track = seen.track(name)
        if track is None or seen.source(name) == "log" or not track.falls:
            continue
        came_back = track.last >= track.greatest or track.least >= 0.5 * track.greatest
        if track.falls >= 2 or (came_back and track.count >= 3):
            return name, track
    return "", None


def _frozen_page(s: Sighting, seen: Sight) -> Iterator[Clue]:
    """A device page that repeats itself byte for byte for longer than its exporter's interval."""
    owners = [g for g in s.gpus if g.source("gpu_power_watts") == "dcgm" or g.source("gpu_util_ratio") == "dcgm"]
    if not owners or seen.subject.engine or seen.empty < FROZEN_POLLS:
        return
    since = max(g.last_at for g in owners)
    for_s = seen.answered_at - since
    if for_s < FROZEN_S:
        return
    yield Clue(
        "stale_telemetry",
        seen.subject,
        0.65,
        f"The GPU page answers and has not changed for {for_s:.0f} s, not even in its last digits: its values are frozen.",
        since,
        "frozen_page",
        picture="telemetry",
        evidence=(told(seen, "equal pages", float(seen.empty), float(FROZEN_POLLS), ">=", for_s),),
        look_next="the exporter's log, and nvidia-smi beside it",
    )


def _energy_stands(seen: Sight) -> Iterator[Clue]:
    energy, power = seen.track("gpu_energy_joules_total"), seen.track("gpu_power_watts")
    if energy is None or power is None or energy.count < FROZEN_POLLS or energy.span_s < FROZEN_S:
        return
    if energy.growth > 0 or power.least <= 1:
        return
    yield Clue(
        "stale_telemetry",
        seen.subject,
        0.65,
        f"{power.last:.0f} W are shown and the energy counter has not moved for {energy.span_s:.0f} s: the values are frozen.",
        energy.first_at,
        "frozen_page",
        picture="telemetry",
        evidence=(
            told(seen, "gpu_energy_joules_total", 0.0, 0.0, ">", energy.span_s),
            told(seen, "gpu_power_watts", power.last),
        ),
        look_next="the exporter's log, and nvidia-smi beside it",
    )


def _not_on_mig(seen: Sight) -> Iterator[Clue]:
    mig = seen.facts.get("mig_profile", "") or ("/" in seen.subject.gpu and seen.subject.gpu.split("/")[-1])
    util = seen.track("gpu_util_ratio")
    if not mig or util is None or util.greatest > 0:
        return
    for signal in ("gpu_gr_engine_active_ratio", "gpu_sm_active_ratio", "gpu_dram_active_ratio"):
        track = seen.track(signal)
        if track is not None and track.greatest >= BUSY:
            yield Clue(
                "stale_telemetry",
                seen.subject,
                0.7,
                f"GPU utilisation reads 0 on a MIG instance ({mig}), where it is not measured; {signal} {track.greatest:.2f} "
                "says that it works. No sign of an incident.",
                seen.first_at,
                "not_measured_on_mig",
                "info",
                "telemetry",
                evidence=(told(seen, "gpu_util_ratio", 0.0), told(seen, signal, track.greatest, BUSY, ">=")),
                instead=instead(("healthy", 0.7)),
                look_next=f"{signal} in place of the utilisation",
            )
            return
