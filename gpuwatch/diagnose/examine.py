"""Recognises each source, reads all of them as the material of one incident, and judges it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..config import Config
from ..model import Verdict
from .content import Content
from .folder import read_folder
from .host_table import HostTable
from .judgement import Judged, Progress, judge_calls
from .log_file import read_log_file
from .material import Found, Material, MaterialError, calls
from .pages import PageBook, look_of
from .recognise import Kind, kind_of
from .recordings import capsule_material, capture_calls, capture_material, open_capture, replay_capsule
from .scrapes import ASSUMED_S, split_scrapes, times_of
from .smi_text import SmiText
from .span_lines import SpanFile, summary

_SAYS_WHAT_IT_IS = {
    "html": "an HTML page, not metrics: another port, or a path that redirects (try /metrics and /metrics/)",
    "binary": "binary, and neither a capsule nor gzip",
    "empty": "empty",
    "json": "JSON of a kind that is not known: captures, OTLP exports and spans are read",
    "index": "an index of pages: give the folder that it lies in",
}


class Answer(msgspec.Struct, frozen=True):
    """What was found, what could not be seen, what qualifies it, and the verdict. `pool`: lines on many replicas."""

    judged: Judged
    found: tuple[Found, ...]
    notes: tuple[str, ...]
    pool: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The verdict."""
        return self.judged.verdict


def diagnose(source: str, config: Config) -> tuple[Verdict, list[str]]:
    """The verdict on one source and what qualifies it. Raises MaterialError, CaptureError or CapsuleError."""
    answer = examine([source], config)
    return answer.verdict, list(answer.notes)


def examine(sources: Sequence[str], config: Config, progress: Progress = lambda _: None) -> Answer:
    """Read the sources (`-` is stdin) as one incident's material and judge it.

    Raises MaterialError, CaptureError or CapsuleError naming the file, and the line where there is one.
    """
    material = Material(_engine_name(config))
    if len(sources) == 1 and not Path(sources[0]).is_dir():
        content = Content(sources[0])
        kind = kind_of(content.head())
        if kind == "capsule":
            return _replayed(sources[0])
        if kind == "capture":
            capture = open_capture(content)
            judged = judge_calls(capture_calls(capture, material), config)
            return _answer(judged, material)
        read_source(content, kind, material)
    else:
        _read_all(sources, material, lambda part: progress(part / 2))
    if not material.items:
        raise MaterialError(f"{', '.join(sources)}: nothing in it can be judged")
    since, until = material.span
    judged = judge_calls(calls(material.items), config, progress, int(until - since) + 1)
    return _answer(judged, material)


def read_source(content: Content, kind: Kind, material: Material, engine: str = "", *, needed: bool = True) -> None:
    """Add one file of any kind. MaterialError for what is none, or (if `needed`) has nothing that is known."""
    if kind == "page":
        _read_page_file(content, material)
    elif kind == "capture":
        capture_material(content, material)
    elif kind == "capsule":
        capsule_material(content, material)
    elif kind == "log":
        read_log_file(content, material, engine or material.engine, needed=needed)
    elif kind == "spans":
        _read_spans(content, material)
    elif kind == "smi":
        _read_smi(content, material)
    elif kind == "host table":
        _read_host_table(content, material, needed=needed)
    else:
        raise MaterialError(f"{content.name}: {_SAYS_WHAT_IT_IS[kind]}")


def _read_all(sources: Sequence[str], material: Material, progress: Progress) -> None:
    """Folders and pages first: they say the time that a log is laid beside. A capture names the engine."""
    files = [(Content(s), kind_of(Content(s).head())) for s in sources if s != "-" and not Path(s).is_dir()]
    if "-" in sources:
        stdin = Content("-")
        files.append((stdin, kind_of(stdin.head())))
    captures = [content for content, kind in files if kind == "capture" and not content.is_stdin]
    if captures:
        material.engine = open_capture(captures[0]).header.engine
    later: list[tuple[Content, Kind, bool]] = [(c, k, True) for c, k in files if k in ("log", "spans")]
    for content, kind in files:
        if kind not in ("log", "spans"):
            read_source(content, kind, material)
    for folder in (s for s in sources if s != "-" and Path(s).is_dir()):
        read_folder(folder, material, lambda c, k: later.append((c, k, False)), progress)
    logs = sum(1 for _, kind, _ in later if kind == "log")
    for content, kind, needed in later:
        name = Path(content.path).stem if kind == "log" and logs > 1 and not _same_engine(material) else ""
        read_source(content, kind, material, name, needed=needed)


def _same_engine(material: Material) -> bool:
    """Several logs beside pages are of the engine whose pages they are; alone, each is of an engine of its own."""
    return any(f.what.startswith(("folder", "capture")) or "page" in f.what for f in material.found)


def _read_page_file(content: Content, material: Material) -> None:
    """One page, or several scrapes one after the other."""
    scrapes = split_scrapes(content.whole())
    written_at = content.modified_at()
    times, assumed = times_of(scrapes, 0.0 if math.isnan(written_at) else written_at)
    book = PageBook(material.engine)
    for scrape, at in zip(scrapes, times, strict=True):
        material.add(at, book.read(scrape.body, at))
    what = look_of(book)
    material.saw(content.name, what if len(scrapes) == 1 else f"{len(scrapes)} scrapes: {what}", times)
    if assumed:
        material.note(
            f"{content.name}: its scrapes say no time: {ASSUMED_S:g} s between them is assumed, so rates are rough"
        )
    if book.dropped:
        material.note(f"{content.name}: {book.dropped} lines or series could not be used")
    if content.cut:
        material.note(f"{content.name}: the file breaks off, or is larger than what is read")


def _read_spans(content: Content, material: Material) -> None:
    file = SpanFile(material.engine)
    file.read(content.lines())
    material.items += file.items
    material.saw(content.name, f"spans ({file.spans} stages)", [at for at, _ in file.items])
    for what, count in summary(file).items():
        if count:
            material.note(f"{content.name}: {count} {what}")


def _read_smi(content: Content, material: Material) -> None:
    shown = SmiText()
    shown.read(content.lines(), content.modified_at())
    beside = not content.is_stdin and read_log_file(content, material, material.engine, needed=False)
    if not shown.items and not beside:
        raise MaterialError(f"{content.name}: nvidia-smi's output without a device whose numbers can be read")
    if beside and not shown.dated:
        return  # a container that shows its devices when it starts: when, only the log's own lines say
    material.items += shown.items
    times = [at for at, _ in shown.items] if shown.dated else []
    material.saw(content.name, f"nvidia-smi ({shown.devices} devices)", times)


def _read_host_table(content: Content, material: Material, *, needed: bool) -> None:
    table = HostTable(material.engine)
    try:
        table.read(content.lines())
    except ValueError as error:
        if needed:
            raise MaterialError(f"{content.name}: line 1: {error}") from error
        material.note(f"{content.name}: left aside: {error}")
        return
    material.items += table.items
    material.saw(content.name, "host table", [at for at, _ in table.items])
    if table.unknown:
        material.note(f"{content.name}: {len(table.unknown)} columns are not known: {', '.join(table.unknown[:8])}")
    if table.dropped:
        material.note(f"{content.name}: {table.dropped} cells or rows could not be used")


def _engine_name(config: Config) -> str:
    """The configured engine where there is one, so that its objectives and devices count."""
    return config.engines[0].name if len(config.engines) == 1 and config.engines[0].name else "engine"


def _replayed(path: str) -> Answer:
    verdict, notes = replay_capsule(path)
    return Answer(Judged(verdict, (), verdict.blind), (Found(path, "capsule, executed again"),), tuple(notes))


def _answer(judged: Judged, material: Material) -> Answer:
    notes = list(material.notes)
    if material.cut_notes:
        notes.append(f"and {material.cut_notes} more notes")
    return Answer(judged, tuple(material.found), tuple(notes))
