"""Takes off what containers, journals, loggers and launchers put before a payload, whatever their order.

Container and CRI times, kubectl and compose names, journald, ANSI colours, log levels with dates, process tags
(`(EngineCore_DP0 pid=7)`), rank tags (`DP6 TP6 EP6`): each is one expression that is matched where the last one ended.
What is left is the text; times and ranks are kept, names are not.
"""

from __future__ import annotations

import re

import msgspec

from . import stamps
from .stamps import Stamp

_ANSI = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")
_ROUNDS = 10
_COUNTING = re.compile(r"\b(?:loggers|metrics|llm_engine)\.py:\d")
_LEVEL = r"(?:TRACE|DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)"
_TAG = r"(?:(?:TP|DP|EP|PP|ATTN_TP|MOE_DP|CP)\d{1,4})"

_CRI = re.compile(r"\s?(?:stdout|stderr) [FP] ")
_BRACKETED = re.compile(r"\[(?=\d{4}-\d\d-\d\d |\d\d/\d\d/\d{4}-|[A-Z][a-z]{2} [A-Z][a-z]{2} )([^\]]{1,80})\]\s?")
_LEVELLED = re.compile(rf"{_LEVEL} (?=\d\d-\d\d \d\d:)")
_GLOG = re.compile(r"[IWEF](?=\d{4} \d\d:\d\d:\d\d)")
_JOURNAL = re.compile(r"(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d")
_HOST = re.compile(r" [\w.\-]{1,128} [\w.\-@/]{1,64}(?:\[\d{1,10}\])?: ")
_EPOCH = re.compile(r"(?=\d{9,10}\.\d{3,9} )")
_UPTIME = re.compile(r"\[(?= *\d{1,10}\.\d{3,9}\])")
_LOGRUS = re.compile(r'time="(?=\d{4}-)')
_LOGRUS_REST = re.compile(r'" level=\w{1,10} msg="?')
_SOURCE = re.compile(r"\s?(?:\[[\w.\-/]{1,64}:\d{1,6}\]|(?:\d{1,10} )?[\w.\-]{1,64}:\d{1,6}\])\s?")
_PROCESS = re.compile(r"\(([A-Za-z]\w{0,40}) (?:rank=\d{1,6} ?)?pid=(\d{1,10})(?:, ip=[\w.:]{1,64})?\)\s?")
_RANKS = re.compile(rf"\[?({_TAG}(?: {_TAG}){{0,4}})\]\s?")
_NCCL_RANK = re.compile(r"\[[Rr]ank ?(\d{1,5})\]:?\s?")
_TRT_TAGS = re.compile(
    r"(?:\[(?:TRT-LLM|TensorRT-LLM|I|W|E|V|D|F|_torch|_auto_deploy)\]\s?|\[RANK (\d{1,5})\]\s?){1,6}"
)
_POD = re.compile(r"(?:\[pod/[\w.\-/]{1,200}\] |[\w.\-]{1,64} {1,40}\| )")
_CHILD = re.compile(r"\[(\d{2,6})\] (?=\d{1,7}\.\d\d\.\d{3})")
_BARE_LEVEL = re.compile(rf"\[?{_LEVEL}\]?:?\s{{1,12}}")
_OF_NAME = re.compile(r"(TP|DP|EP|PP|Engine )(\d{1,4})")
_TAGS_WITHIN = re.compile(r"\b(DP\d{1,4}(?: (?:TP|EP|PP)\d{1,4}){0,4})\] ")
_WITHIN_CHARS = 120


class Line(msgspec.Struct):
    """A line without its prefixes. `rank` is the data-parallel rank, `tp_rank` the tensor-parallel one.

    `prefixed`: something was taken off, so that a line without may be the rest of the one before. `counts`: it comes from
    a module that prints stats lines.
    """

    text: str
    stamp: Stamp | None = None
    rank: int | None = None
    tp_rank: int | None = None
    process: str = ""
    pid: int = 0
    prefixed: bool = False
    counts: bool = False


def strip(text: str) -> Line:
    """Take the prefixes off. Never raises; linear in the length of the line."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    line = Line(text)
    at = len(text) - len(text.lstrip(" \t")) if text[:1] in (" ", "\t") else 0
    for _ in range(_ROUNDS):
        end = _one(line, text, at)
        if end <= at:
            break
        line.prefixed = True
        at = end
    line.text = text[at:]
    if line.rank is None and "DP" in text[at : at + _WITHIN_CHARS]:  # behind a prefix that nobody knows
        tags = _TAGS_WITHIN.search(text, at, at + _WITHIN_CHARS)
        _ranks(line, tags[1] if tags else "")
    line.counts = line.prefixed and _COUNTING.search(text, 0, at) is not None
    return line


def _one(line: Line, text: str, at: int) -> int:
    """Take one prefix at `at` off; its end, or `at` where there is none."""
    head = text[at : at + 1]
    if head.isdigit():
        return _number(line, text, at)
    if head == "[":
        return _bracket(line, text, at)
    if head == "(":
        return _process(line, text, at)
    if head == " ":
        found = _CRI.match(text, at)
        return found.end() if found else at + 1 if line.prefixed else at
    return _word(line, text, at)


def _number(line: Line, text: str, at: int) -> int:
    made = stamps.iso(text, at, "container" if text[at + 10 : at + 11] == "T" else "own")
    if made:
        _keep(line, made[0])
        return made[1]
    made = stamps.process_uptime(text, at, str(line.pid))
    if made:
        _keep(line, made[0])
        return made[1]
    if _EPOCH.match(text, at):
        made = stamps.epoch(text, at)
        if made:
            _keep(line, made[0])
            host = _HOST.match(text, made[1])
            return host.end() if host else made[1]
    found = _SOURCE.match(text, at) if line.stamp else None
    if found:
        return found.end()
    pod = _POD.match(text, at)
    return pod.end() if pod else at


def _bracket(line: Line, text: str, at: int) -> int:
    dated = _BRACKETED.match(text, at)
    if dated:
        inner = dated[1]
        made = stamps.iso(inner) or stamps.trt(inner) or stamps.syslog(inner)
        if made:
            _keep(line, made[0])
            _ranks(line, inner[made[1] :])
            return dated.end()
    if _UPTIME.match(text, at):
        made = stamps.uptime(text, at + 1)
        if made and text[made[1] : made[1] + 1] == "]":
            _keep(line, made[0])
            return made[1] + 1
    for pattern in (_RANKS, _TRT_TAGS, _SOURCE, _POD, _BARE_LEVEL):
        found = pattern.match(text, at)
        if found:
            if pattern is _RANKS:
                _ranks(line, found[1])
            elif pattern is _TRT_TAGS and found[1] is not None:
                line.rank = int(found[1])
            return found.end()
    child = _CHILD.match(text, at)
    if child:
        line.pid = int(child[1])
        return child.end()
    found = _NCCL_RANK.match(text, at)
    if found and text[found.end() - 1 : found.end()] in (":", " ") and "]:" in found[0]:
        line.tp_rank = int(found[1])
        return found.end()
    return at


def _process(line: Line, text: str, at: int) -> int:
    found = _PROCESS.match(text, at)
    if not found:
        return at
    line.process, line.pid = found[1], int(found[2])
    _ranks(line, found[1])
    return found.end()


def _word(line: Line, text: str, at: int) -> int:
    for pattern, parse in ((_LEVELLED, stamps.no_year), (_GLOG, stamps.glog)):
        found = pattern.match(text, at)
        made = parse(text, found.end()) if found else None
        if made:
            _keep(line, made[0])
            return made[1]
    if _LOGRUS.match(text, at):
        made = stamps.iso(text, at + 6, "own")
        rest = _LOGRUS_REST.match(text, made[1]) if made else None
        if made and rest:
            _keep(line, made[0])
            return rest.end()
    if _JOURNAL.match(text, at):
        made = stamps.syslog(text, at)
        host = _HOST.match(text, made[1]) if made else None
        if made and host:
            _keep(line, made[0])
            return host.end()
    for plain in (_SOURCE, _BARE_LEVEL, _POD) if line.stamp else (_BARE_LEVEL, _POD):
        found = plain.match(text, at)
        if found:
            return found.end()
    return at


def _keep(line: Line, stamp: Stamp) -> None:
    """The most trusted clock of the line counts."""
    if line.stamp is None or stamps.trust(stamp) < stamps.trust(line.stamp):
        line.stamp = stamp


def _ranks(line: Line, tags: str) -> None:
    """`DP6 TP6 EP6`, `EngineCore_DP0`: the data-parallel rank is the engine's, the others are within it."""
    for kind, number in _OF_NAME.findall(tags):
        if kind in ("DP", "Engine "):
            line.rank = int(number)
        elif kind == "TP":
            line.tp_rank = int(number)
