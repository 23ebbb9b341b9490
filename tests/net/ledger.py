"""What was, what was approved since, and why: the files of the net.

`golden/` is the outcome of every input at the commit that began the net; it is not touched when the product changes.
An outcome that differs and is right to differ is written to `approved/`, and a row of `ledger.toml` says from what, to
what and why. Rows of `packaging/…` and `judges/…` have no such files: both sides are computed when the tests run.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import msgspec

from tests.net.outcome import Outcome, difference

HERE = Path(__file__).parent
GOLDEN, APPROVED, LEDGER = HERE / "golden", HERE / "approved", HERE / "ledger.toml"
HEAD = """# Every approved difference: from what, to what, why. The outcomes themselves are in approved/; for packaging/ and
# judges/, `from` is the live agent's answer or the pipeline's. `python -m tests.net --approve KEY --why TEXT` writes rows,
# `--retire` removes those that no longer differ. A row that can go, goes.
"""


class Row(msgspec.Struct, frozen=True):
    """One approved difference and all inputs that show it."""

    was: str = msgspec.field(name="from")
    now: str = msgspec.field(name="to")
    why: str = ""
    keys: tuple[str, ...] = ()


Difference = tuple[str, str]


def outcomes(folder: Path) -> dict[str, Outcome]:
    """All outcomes that a folder keeps, by key."""
    kept: dict[str, Outcome] = {}
    for file in sorted(folder.glob("*.json")):
        kept |= msgspec.json.decode(file.read_bytes(), type=dict[str, Outcome])
    return kept


def keep(folder: Path, kept: Mapping[str, Outcome]) -> None:
    """Write outcomes, one a line, a file for each kind of input; files that hold nothing go."""
    folder.mkdir(exist_ok=True)
    kinds: dict[str, list[str]] = {file.stem: [] for file in folder.glob("*.json")}
    for key in sorted(kept):
        line = f"{msgspec.json.encode(key).decode()}: {msgspec.json.encode(kept[key]).decode()}"
        kinds.setdefault(_kind(key), []).append(line)
    for kind, lines in kinds.items():
        file = folder / f"{kind}.json"
        if lines:
            file.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        else:
            file.unlink()


def _kind(key: str) -> str:
    """`cases`, or `scenarios-h100-1`: the file that keeps a key."""
    kind, _, *rest = key.split("/")
    return "-".join((kind, *rest[:2]))


def rows(file: Path = LEDGER) -> list[Row]:
    """The ledger. msgspec.ValidationError for a row without its parts."""
    if not file.is_file():
        return []
    return msgspec.convert(tomllib.loads(file.read_text()), dict[str, list[Row]]).get("row", [])


def keep_rows(given: Iterable[Row], file: Path = LEDGER) -> None:
    """Write the ledger; keys that show the same difference for the same reason share a row."""
    merged: dict[tuple[str, str, str], set[str]] = {}
    for row in given:
        merged.setdefault((row.was, row.now, row.why), set()).update(row.keys)
    parts = [HEAD]
    for (was, now, why), keys in sorted(merged.items(), key=lambda item: (min(item[1]), item[0])):
        parts.append(
            "\n[[row]]\nkeys = [\n"
            + "".join(f"  {_string(key)},\n" for key in sorted(keys))
            + f"]\nfrom = {_string(was)}\nto = {_string(now)}\nwhy = {_string(why)}\n"
        )
    file.write_text("".join(parts))


def _string(value: str) -> str:
    return msgspec.json.encode(value).decode()


@cache
def golden() -> Mapping[str, Outcome]:
    """Outcomes of the commit that began the net."""
    return outcomes(GOLDEN)


@cache
def approved() -> Mapping[str, Outcome]:
    """Outcomes that differ from the golden ones and are right to."""
    return outcomes(APPROVED)


@cache
def row_by_key() -> Mapping[str, Row]:
    """The row of each key that the ledger names. ValueError for a key in two rows."""
    found: dict[str, Row] = {}
    for row in rows():
        for key in row.keys:
            if key in found:
                raise ValueError(f"{LEDGER.name}: {key} stands in two rows")
            found[key] = row
    return found


def trouble(key: str, current: Outcome) -> str:
    """Why an outcome is not as expected, in words and with what to do; empty where it is."""
    before = golden().get(key)
    if before is None:
        return f"{key}: not in golden/: {current.title}\n  python -m tests.net --renew '{key}'"
    expected = approved().get(key, before)
    found = difference(expected, current)
    if found is None:
        return ""
    if key in approved() and difference(before, current) is None:
        return f"{key}: is as it was: python -m tests.net --retire '{key}'"
    return f"{key}:\n  was {found[0]}\n  is  {found[1]}\n  python -m tests.net --approve '{key}' --why …"


def unlisted(key: str, found: Difference | None) -> str:
    """Why a difference between two ways of the same input is not as the ledger says; empty where it is."""
    row = row_by_key().get(key)
    if found is None:
        return f"{key}: no longer differs: python -m tests.net --retire '{key}'" if row else ""
    if row is not None and (row.was, row.now) == found:
        return ""
    return f"{key}:\n  {found[0]}\n  {found[1]}\n  python -m tests.net --approve '{key}' --why …"


def matching(patterns: Iterable[str], keys: Iterable[str]) -> list[str]:
    """The keys that one of the patterns names; all of them without a pattern."""
    wanted = tuple(patterns)
    return [key for key in keys if not wanted or any(fnmatchcase(key, pattern) for pattern in wanted)]
