"""The times that lines carry: container and journal times, loggers' own dates with and without a year, epochs, uptime.

A Stamp says which clock it was read from, because the clocks of one line may differ by hours (a container in UTC, a
logger in local time). Placing them on one axis is Timeline's task.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache

import msgspec

Clock = str
"""One of CLOCKS; uptimes of several processes are `boot:` and a number of theirs."""
CLOCKS = ("container", "journal", "own", "boot")
"""In the order of trust: the earlier one counts where a line has several."""
FIRST_YEAR = 1971
YEARLESS = 2000
"""A leap year, in which dates without a year are kept until a year is known."""


class Stamp(msgspec.Struct, frozen=True):
    """`unix_s` is in the zone that the line names, or as if it were UTC; in the year 2000 where `yearless`."""

    clock: Clock
    unix_s: float
    yearless: bool = False


_MONTHS = {
    "Jan": 1, "Feb": 2, "Mar": 3, "Apr": 4, "May": 5, "Jun": 6, "Jul": 7, "Aug": 8, "Sep": 9, "Oct": 10, "Nov": 11, "Dec": 12,
}  # fmt: skip
_HMS = r"(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
_ISO = re.compile(rf"(\d{{4}})-(\d\d)-(\d\d)[T ]{_HMS}(Z|[+-]\d\d:?\d\d)?")
_TRT = re.compile(rf"(\d\d)/(\d\d)/(\d{{4}})-{_HMS}")
_NO_YEAR = re.compile(rf"(\d\d)-(\d\d) {_HMS}")
_GLOG = re.compile(rf"(\d\d)(\d\d) {_HMS}")
_SYSLOG = re.compile(rf"(?:[A-Z][a-z]{{2}} )?([A-Z][a-z]{{2}}) {{1,2}}(\d{{1,2}}) {_HMS}(?: (\d{{4}}))?")
_EPOCH = re.compile(r"(\d{9,10})(?:\.(\d{1,9}))?(?!\d)")
_PROCESS_UPTIME = re.compile(r"(\d{1,7})\.([0-5]\d)\.(\d{3})\.(\d{3}) [DIWE] ")
_UPTIME = re.compile(r" *(\d{1,10})\.(\d{1,9})")


def iso(text: str, at: int = 0, clock: Clock = "own") -> tuple[Stamp, int] | None:
    """`2025-10-15T00:02:38.756689123Z`, `2025-06-12 11:41:56`; (stamp, end) or None."""
    found = _ISO.match(text, at)
    if not found:
        return None
    year, month, day, *hms, zone = found.groups()
    return _made(clock, _midnight(int(year), int(month), int(day)) - _offset_s(zone), hms, found.end())


def trt(text: str, at: int = 0) -> tuple[Stamp, int] | None:
    """`08/04/2026-19:08:13`, month first."""
    found = _TRT.match(text, at)
    if not found:
        return None
    month, day, year, *hms = found.groups()
    return _made("own", _midnight(int(year), int(month), int(day)), hms, found.end())


def no_year(text: str, at: int = 0) -> tuple[Stamp, int] | None:
    """`07-28 06:40:59`, as vLLM writes it."""
    return _yearless(_NO_YEAR.match(text, at))


def glog(text: str, at: int = 0) -> tuple[Stamp, int] | None:
    """`0510 07:57:30.770724`, as Triton and libraries write it behind a letter."""
    return _yearless(_GLOG.match(text, at))


def syslog(text: str, at: int = 0) -> tuple[Stamp, int] | None:
    """`Apr 22 15:35:31`, `Wed Apr 22 15:35:31 2025`."""
    found = _SYSLOG.match(text, at)
    if not found or found[1] not in _MONTHS:
        return None
    month, day, *hms, year = found.groups()
    made = _made(
        "own" if year else "journal", _midnight(int(year or YEARLESS), _MONTHS[month], int(day)), hms, found.end()
    )
    return (msgspec.structs.replace(made[0], yearless=not year), made[1]) if made else None


def epoch(text: str, at: int = 0, clock: Clock = "journal") -> tuple[Stamp, int] | None:
    """`1717000000.123456`, `timestamp=1717000000`."""
    found = _EPOCH.match(text, at)
    return (Stamp(clock, float(found[0])), found.end()) if found else None


def trust(stamp: Stamp) -> int:
    """The place of a stamp's clock in the order of trust; smaller is better."""
    return CLOCKS.index(stamp.clock.partition(":")[0])


def process_uptime(text: str, at: int, process: str) -> tuple[Stamp, int] | None:
    """`11.07.572.806 I`, as llama.cpp writes minutes, seconds and parts since its start; several may share a log."""
    found = _PROCESS_UPTIME.match(text, at)
    if not found:
        return None
    minutes, seconds, milli, micro = (int(group) for group in found.groups())
    return Stamp(f"boot:{process}", minutes * 60 + seconds + milli / 1e3 + micro / 1e6), found.end()


def uptime(text: str, at: int = 0) -> tuple[Stamp, int] | None:
    """`  123.456789`, seconds since the machine started."""
    found = _UPTIME.match(text, at)
    return (Stamp("boot", float(found[0])), found.end()) if found else None


def _yearless(found: re.Match[str] | None) -> tuple[Stamp, int] | None:
    if not found:
        return None
    month, day, *hms = found.groups()
    made = _made("own", _midnight(YEARLESS, int(month), int(day)), hms, found.end())
    return (msgspec.structs.replace(made[0], yearless=True), made[1]) if made else None


def _made(clock: Clock, midnight: float, hms: list[str], end: int) -> tuple[Stamp, int] | None:
    """None where a field is impossible: what only looks like a time is none."""
    hour, minute, second, part = hms
    if midnight != midnight or int(hour) > 23 or int(minute) > 59 or int(second) > 60:
        return None
    seconds = int(hour) * 3600 + int(minute) * 60 + int(second) + (float(f"0.{part}") if part else 0.0)
    return Stamp(clock, midnight + seconds), end


@lru_cache(maxsize=64)
def _midnight(year: int, month: int, day: int) -> float:
    """Unix seconds of a day's beginning in UTC; NaN for a day that is none."""
    try:
        return datetime(year, month, day, tzinfo=UTC).timestamp() if year >= FIRST_YEAR else float("nan")
    except ValueError:
        return float("nan")


def _offset_s(zone: str | None) -> float:
    if not zone or zone == "Z":
        return 0.0
    sign = -1 if zone[0] == "-" else 1
    return sign * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)


def in_year(stamp: Stamp, year: int) -> float:
    """A yearless stamp in a year; its 29 February is the 1 March where there is none."""
    there = datetime.fromtimestamp(stamp.unix_s, timezone(timedelta(0)))
    month, day = there.month, there.day
    midnight = _midnight(year, month, day)
    if midnight != midnight:
        midnight = _midnight(year, 3, 1)
    return midnight + stamp.unix_s % 86400
