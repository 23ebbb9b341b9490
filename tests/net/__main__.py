"""`python -m tests.net [KEY …]`: play the inputs again and say what differs from what is kept.

KEY may have `*`. Without one everything is played, nightly inputs too; `--slice` plays what every push plays.
"""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import click

from tests.net import inputs, ledger, packaging
from tests.net.ledger import Row
from tests.net.outcome import Outcome, difference


class Result(NamedTuple):
    """What came of a key: an outcome to compare with the files, or how two ways of one input differ."""

    key: str
    outcome: Outcome | None = None
    found: tuple[str, str] | None = None

    @property
    def trouble(self) -> str:
        """What is not as expected; empty where all is."""
        if self.outcome is not None:
            return ledger.trouble(self.key, self.outcome)
        return ledger.unlisted(self.key, self.found)

    @property
    def differs(self) -> tuple[str, str] | None:
        """How it differs from the golden outcome, or from the other way."""
        if self.outcome is None:
            return self.found
        before = ledger.golden().get(self.key)
        return difference(before, self.outcome) if before is not None else None


def results_of(key: str) -> list[Result]:
    """Play one input; a case or scenario also says whether its two judges agree."""
    if key.startswith("packaging/"):
        with tempfile.TemporaryDirectory() as folder:
            return [Result(key, found=packaging.compare(key, Path(folder)))]
    ran = inputs.run(key)
    found = [Result(key, ran.outcome)]
    if ran.judges is not None:
        found.append(Result(f"judges/{key}", found=inputs.disagreement(ran.judges)))
    return found


@click.command()
@click.argument("patterns", nargs=-1, metavar="[KEY]...")
@click.option("--slice", "only_slice", is_flag=True, help="Only what every push plays.")
@click.option("--check", is_flag=True, help="Exit with 1 where something is not as expected.")
@click.option("--renew", is_flag=True, help="Write the golden outcomes of KEYs: for inputs that are new.")
@click.option("--approve", is_flag=True, help="Write what differs into the ledger; needs --why.")
@click.option("--why", default="", help="Why it is right that it differs.")
@click.option("--retire", is_flag=True, help="Remove from the ledger what no longer differs.")
@click.option("--jobs", "-j", default=2, show_default=True, help="Processes.")
def main(
    patterns: tuple[str, ...],
    only_slice: bool,
    check: bool,
    renew: bool,
    approve: bool,
    why: str,
    retire: bool,
    jobs: int,
) -> None:
    """Play KEYs (all without one) and compare; write only what is asked for."""
    if approve and not why:
        raise click.UsageError("--approve needs --why")
    if retire and only_slice:
        raise click.UsageError("--retire needs everything that KEYs name: without --slice")
    if renew and (only_slice or not patterns):
        raise click.UsageError("--renew needs a KEY, and no --slice: golden outcomes are those that began the net")
    plain = [pattern.removeprefix("judges/") for pattern in patterns]
    keys = ledger.matching(plain, [*inputs.all_keys(), *packaging.all_keys()])
    keys = [key for key in keys if not only_slice or key.startswith("packaging/") or inputs.in_slice(key)]
    with ProcessPoolExecutor(jobs) as pool:
        played = [result for found in pool.map(results_of, keys, chunksize=4) for result in found]
    results = [result for result in played if ledger.matching(patterns, [result.key])]
    if renew:
        fresh = {result.key: result.outcome for result in results if result.outcome is not None}
        gone = set(ledger.matching(patterns, ledger.golden())) - set(keys)
        ledger.keep(ledger.GOLDEN, {k: v for k, v in {**ledger.golden(), **fresh}.items() if k not in gone})
    if approve:
        write_approved(results, why)
    if retire:
        write_retired(results, set(ledger.matching(patterns, ledger.row_by_key())) - {r.key for r in results})
    for cached in (ledger.golden, ledger.approved, ledger.row_by_key):
        cached.cache_clear()
    wrong = [result.trouble for result in results if result.trouble]
    click.echo("\n".join([*wrong, f"{len(results)} played, {len(wrong)} not as expected"]))
    sys.exit(1 if check and wrong else 0)


def write_approved(results: list[Result], why: str) -> None:
    """A row for each that is not as expected and differs; the outcomes beside it."""
    new = {r.key: r for r in results if r.trouble and r.differs is not None}
    kept = {**ledger.approved(), **{k: r.outcome for k, r in new.items() if r.outcome is not None}}
    rows = [Row(row.was, row.now, row.why, tuple(k for k in row.keys if k not in new)) for row in ledger.rows()]
    rows += [Row(*r.differs, why, (key,)) for key, r in new.items() if r.differs is not None]
    ledger.keep(ledger.APPROVED, kept)
    ledger.keep_rows(row for row in rows if row.keys)


def write_retired(results: list[Result], lost: set[str]) -> None:
    """Away with the rows and outcomes of what no longer differs, and of what is `lost`: no longer there."""
    gone = {r.key for r in results if r.differs is None} | lost
    ledger.keep(ledger.APPROVED, {k: v for k, v in ledger.approved().items() if k not in gone})
    rows = [Row(row.was, row.now, row.why, tuple(k for k in row.keys if k not in gone)) for row in ledger.rows()]
    ledger.keep_rows(row for row in rows if row.keys)


if __name__ == "__main__":
    main()
