"""`python -m tests.net.field FOLDER`: cases from the field against a table of what is right, honest, and never to be named.

FOLDER holds files and folders for `gpuwatch diagnose`, and a table (table.toml, or `--table FILE`) with one `[[row]]` for
each case:

    inputs = ["a.log", "a-tail.log"]            # the worst of them counts for the row
    right = ["start_failure"]                   # one of these, first, and nothing beside it but `beside`; or "nothing"
    honest = ["unknown"]                        # as good as right; an unknown with a right class beside it always is
    never = ["engine_crash"]                    # at any severity
    beside = ["cold_start"]                     # may stand below a right or honest answer
    says = ["port|address"]                     # regular expressions that a right or honest answer has, all of them
    silent = ["gpu.memory.utilization"]         # and those that it has not, in its advice neither

An expectation is a class, or a table of `rule` and more: see Expectation. Incidents of severity info count where nothing
stands above them, and always for `never` and `nothing`.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import click
import msgspec

from tests.net.outcome import SEVERITIES
from tests.net.product import REFUSED, Incident, Verdict, diagnosed, everything_of

GRADES = ("right", "honest", "wrong", "never")
"""From the best to the worst. A right class without its words is wrong: the on-call engineer could not act on it."""

NOT_EXPECTED = "is not expected so"


class Expectation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an incident must be.

    `candidate` is among its alternatives. `severity`: at most. `sure`: at most this confidence; in `never`, above it.
    `says`: a regular expression that it has.
    """

    rule: str
    mechanism: str = ""
    candidate: str = ""
    severity: str = "page"
    status: str = ""
    sure: float | None = None
    says: str = ""


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A case: its inputs, and what may be answered."""

    inputs: tuple[str, ...]
    right: tuple[Expectation, ...]
    honest: tuple[Expectation, ...] = ()
    never: tuple[Expectation, ...] = ()
    beside: tuple[Expectation, ...] = ()
    says: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    why: str = ""

    @property
    def half_decided(self) -> tuple[Expectation, ...]:
        """The answers that are unknown and name a right class as a candidate."""
        return tuple(Expectation("unknown", candidate=one.rule) for one in self.right if one.rule != "nothing")


class Graded(msgspec.Struct, frozen=True):
    """The grade of an input, what was answered, and what keeps it from being right."""

    grade: str
    answer: str
    because: str = ""


def read_table(file: Path) -> list[Row]:
    """The rows. msgspec.ValidationError names the key of one that cannot be read."""
    raw = tomllib.loads(file.read_text(encoding="utf-8"))["row"]
    return msgspec.convert([_spelled_out(row) for row in raw], list[Row])


def _spelled_out(row: dict[str, Any]) -> dict[str, Any]:
    lists = {key: row[key] for key in ("right", "honest", "never", "beside") if key in row}
    whole = {key: [{"rule": one} if isinstance(one, str) else one for one in given] for key, given in lists.items()}
    return {**row, **whole}


def grade(row: Row, verdict: Verdict) -> Graded:
    """How a verdict compares with the row."""
    answer = answer_of(verdict)
    bad = [i for i in verdict.incidents for one in row.never if _is_never(one, i)]
    if bad:
        return Graded("never", answer, f"names {bad[0].rule}")
    misses = {}
    for name, expected in (("right", row.right), ("honest", (*row.honest, *row.half_decided))):
        misses[name] = _misses(expected, row, verdict)
        if not misses[name]:
            return Graded(name, answer)
    nearest = "right" if NOT_EXPECTED not in misses["right"] else "honest"
    return Graded("wrong", answer, misses[nearest])


def answer_of(verdict: Verdict) -> str:
    """The verdict in one line."""
    titles = [
        f"{i.severity} {i.rule}{f' ({i.mechanism})' if i.mechanism else ''} {i.confidence:.0%}"
        + (f" or {'/'.join(a.rule for a in i.alternatives)}" if i.rule == "unknown" else "")
        for i in verdict.incidents
    ]
    return ", ".join(titles) or "nothing"


def _misses(expected: tuple[Expectation, ...], row: Row, verdict: Verdict) -> str:
    """Why the verdict is none of what is expected; empty where it is one."""
    if not verdict.incidents:
        return "" if any(one.rule == "nothing" for one in expected) else "names nothing"
    counted = [i for i in verdict.incidents if i.severity != "info"] or list(verdict.incidents)
    if not any(_is(one, counted[0]) for one in expected):
        return f"{counted[0].rule} {NOT_EXPECTED}"
    extra = [i.rule for i in counted[1:] if not any(_is(one, i) for one in row.beside)]
    if extra:
        return f"{extra[0]} stands beside it"
    whole = everything_of(verdict)
    lacks = [words for words in row.says if not re.search(words, whole, re.IGNORECASE)]
    spoils = [words for words in row.silent if re.search(words, whole, re.IGNORECASE)]
    return (f"does not say {lacks[0]!r}" if lacks else "") or (f"says {spoils[0]!r}" if spoils else "")


def _is(one: Expectation, incident: Incident) -> bool:
    """Whether an incident is what is expected."""
    return (
        one.rule == incident.rule
        and one.mechanism in ("", incident.mechanism)
        and one.status in ("", incident.status)
        and (not one.candidate or one.candidate in [a.rule for a in incident.alternatives])
        and SEVERITIES.index(incident.severity) >= SEVERITIES.index(one.severity)
        and (one.sure is None or incident.confidence <= one.sure)
        and re.search(one.says, incident.summary, re.IGNORECASE) is not None
    )


def _is_never(one: Expectation, incident: Incident) -> bool:
    """Whether an incident is what must not be named; with `sure`: more surely than that."""
    return one.rule == incident.rule and (one.sure is None or incident.confidence > one.sure)


def graded(folder: Path, row: Row) -> Graded:
    """The worst grade among the inputs of a row."""
    found = []
    for name in row.inputs:
        try:
            found.append(grade(row, diagnosed([folder / name])))
        except REFUSED as error:
            found.append(Graded("wrong", "refused", str(error).replace(f"{folder}/", "")[:80]))
    return max(found, key=lambda one: GRADES.index(one.grade))


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--table", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Default: FOLDER/table.toml."
)
@click.option("--least", type=int, default=0, help="Exit with 1 below so many right or honest rows, or with one never.")
def main(folder: Path, table: Path | None, least: int) -> None:
    """Diagnose every row of the table and say how it was answered."""
    count: Counter[str] = Counter()
    for row in read_table(table or folder / "table.toml"):
        one = graded(folder, row)
        count[one.grade] += 1
        because = f"   [{one.because}]" if one.because else ""
        click.echo(f"{one.grade:6}  {row.inputs[0]:45}  {one.answer}{because}")
    total = sum(count.values())
    fine = count["right"] + count["honest"]
    click.echo(f"\n{', '.join(f'{count[g]} {g}' for g in GRADES)}; {fine} of {total} right or honest")
    sys.exit(1 if least and (fine < least or count["never"]) else 0)


if __name__ == "__main__":
    main()
