"""A folder of scrape pages, as a loop around curl leaves one, with what lies beside them.

Pages are told by their content; their times come from an `index.csv` in the same folder or in the one above, else from
their names, else from when they were written. Half-written pages, empty pages, pages out of order and rows without a page
are survived and said. A log, a file of spans, a table of the host, a capture or a capsule in the folder is used too.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from .content import Content
from .material import Material, MaterialError
from .page_index import Look, numbers_in, read_index, time_in
from .pages import PageBook, look_of
from .recognise import Kind, kind_of

MAX_FILES = 200_000
MAX_PAGE_BYTES = 16 * 1024 * 1024
_OTHERS: tuple[Kind, ...] = ("log", "spans", "host table", "capture", "capsule")
_SKIPPED = (".md", ".py", ".sh", ".toml", ".yml", ".yaml", ".html", ".png", ".pyc")


class _Page(msgspec.Struct, frozen=True):
    """One file that may be a page. `numbers` are the last and the first in its name, −1 for none."""

    path: Path
    numbers: tuple[int, int]
    empty: bool

    @property
    def number(self) -> int:
        """The last number in its name."""
        return self.numbers[0]


def read_folder(
    path: str, material: Material, read_other: Callable[[Content, Kind], None], progress: Callable[[float], None]
) -> None:
    """Add everything in a folder (and one level below). MaterialError where there is nothing that can be used."""
    pages: dict[Path, list[_Page]] = {}
    indices: dict[Path, list[Look]] = {}
    others: list[tuple[Content, Kind]] = []
    skipped: Counter[str] = Counter()
    for file in _files(Path(path), material):
        content = Content(str(file))
        kind = kind_of(content.head())
        if kind == "index" or file.name.lower() in ("index.csv", "index.csv.gz"):
            indices[file.parent] = _index(content, material)
        elif kind == "page" or (kind in ("empty", "html") and numbers_in(file.name)[0] >= 0):
            pages.setdefault(file.parent, []).append(_Page(file, numbers_in(file.name), kind == "empty"))
        elif kind in _OTHERS and file.suffix.lower() not in _SKIPPED:
            others.append((content, kind))
        else:
            skipped[kind] += 1
    if not pages and not others:
        raise MaterialError(f"{path}: no page, log, span file, host table, capture or capsule in this folder")
    for parent, found in pages.items():
        looks = indices.get(parent) or indices.get(parent.parent)
        _read_pages(parent, found, looks, material, progress)
    for content, kind in others:
        read_other(content, kind)
    if skipped:
        material.note(f"{path}: {sum(skipped.values())} other files were left aside")


def _files(folder: Path, material: Material) -> Iterator[Path]:
    """Files of the folder and of its folders, hidden ones left out."""
    try:
        entries = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
        entries += [f for p in entries if p.is_dir() for f in sorted(p.iterdir()) if not f.name.startswith(".")]
    except OSError as error:
        raise MaterialError(f"{folder}: {error.strerror or error}") from error
    files = [p for p in entries if p.is_file()]
    if len(files) > MAX_FILES:
        material.note(f"{folder}: {len(files)} files; the first {MAX_FILES} are read")
    yield from files[:MAX_FILES]


def _index(content: Content, material: Material) -> list[Look]:
    try:
        looks, bad = read_index(content.lines())
    except ValueError as error:
        raise MaterialError(f"{content.name}: line 1: {error}") from error
    if bad:
        material.note(f"{content.name}: {bad} rows could not be read")
    return looks


def _read_pages(
    folder: Path, pages: list[_Page], looks: list[Look] | None, material: Material, progress: Callable[[float], None]
) -> None:
    """Read the pages of one folder in the order of their times."""
    timed, said = _by_index(folder, pages, looks, material) if looks else _by_files(pages)
    if said != "index.csv":
        material.note(f"{folder}: times of the pages from {said}")
    _say_order(folder, timed, material)
    book = PageBook(material.engine)
    trouble: Counter[str] = Counter()
    for n, (look, page) in enumerate(sorted(timed, key=lambda t: (t[0].at, t[1].number if t[1] else -1))):
        progress((n + 1) / len(timed))
        body = _body(page, trouble)
        if look.error or not body:
            trouble["failed or empty"] += 1
            material.add(look.at, [book.failed(look.at, look.error or "an empty answer", look.took_s)])
        elif not body.endswith(b"\n"):
            trouble["half-written"] += 1
        else:
            material.add(look.at, book.read(body, look.at, look.took_s))
    material.saw(str(folder), f"folder of pages: {look_of(book)}", [look.at for look, _ in timed])
    for what, count in trouble.items():
        material.note(f"{folder}: {count} of {len(timed)} pages {what}")
    if book.dropped:
        material.note(f"{folder}: {book.dropped} lines or series of the pages could not be used")


def _by_index(
    folder: Path, pages: list[_Page], looks: list[Look], material: Material
) -> tuple[list[tuple[Look, _Page | None]], str]:
    """Each page at the time of its row; a row without a page is a failed look, a page without a row has no time."""
    wanted = {look.n for look in looks}
    place = max((0, 1), key=lambda i: len(wanted & {page.numbers[i] for page in pages}))
    by_number: dict[int, list[_Page]] = {}
    by_name: dict[str, list[_Page]] = {}
    for page in pages:
        by_number.setdefault(page.numbers[place], []).append(page)
        by_name.setdefault(page.path.name, []).append(page)
    timed: list[tuple[Look, _Page | None]] = []
    missing = 0
    for look in looks:
        found = by_name.pop(look.file, None) if look.file else by_number.pop(look.n, None)
        missing += not found
        timed += [(look, page) for page in found] if found else [(_lost(look), None)]
    used = {page.path for _, page in timed if page}
    untimed = len(pages) - len(used)
    if not used:
        raise MaterialError(f"{folder}: no page has a number or a name that stands in index.csv")
    if missing:
        material.note(f"{folder}: {missing} rows of index.csv have no page: looks that brought nothing")
    if untimed:
        material.note(f"{folder}: {untimed} pages do not stand in index.csv and are left out")
    return timed, "index.csv"


def _lost(look: Look) -> Look:
    return look if look.error else msgspec.structs.replace(look, error="no page was written")


def _by_files(pages: list[_Page]) -> tuple[list[tuple[Look, _Page | None]], str]:
    """Times in the names where all have one; else when the files were written."""
    told = [time_in(page.path.name) for page in pages]
    if all(at == at for at in told):
        return [(Look(at), page) for at, page in zip(told, pages, strict=True)], "their names"
    return [(Look(Content(str(p.path)).modified_at()), p) for p in pages], "when the files were written (no index.csv)"


def _say_order(folder: Path, timed: list[tuple[Look, _Page | None]], material: Material) -> None:
    """Say where the numbers in the names and the times do not agree: the times count."""
    numbered = [(look.at, page.number) for look, page in timed if page is not None and page.number >= 0]
    numbered.sort()
    turned = sum(1 for (a, n), (b, m) in itertools.pairwise(numbered) if m < n and b > a)
    if turned and not any(math.isnan(look.at) for look, _ in timed):
        material.note(f"{folder}: {turned} pages are out of order by their numbers; their times count")


def _body(page: _Page | None, trouble: Counter[str]) -> bytes:
    if page is None or page.empty:
        return b""
    content = Content(str(page.path))
    body = content.whole(MAX_PAGE_BYTES)
    if content.cut:
        trouble["cut (broken gzip, or larger than 16 MiB)"] += 1
        return body.rstrip(b"\n")  # its end is not its end
    return body
