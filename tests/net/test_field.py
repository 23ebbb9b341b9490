"""A table of field cases is graded as it says: right, honest, wrong, or what must never be named."""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from tests.net.field import grade, main, read_table
from tests.net.inputs import TESTS
from tests.net.product import diagnosed

HANG = TESTS / "cases" / "35-batch-loop-stuck.prom"  # page engine_hang
UNDECIDED = TESTS / "cases" / "25-two-full-ranks.log"  # unknown: replica_imbalance or long_context_kv_pressure
HEALTHY = TESTS / "cases" / "04-prefixes-count-as-used.log"


def graded(tmp_path: Path, file: Path, row: str) -> str:
    (tmp_path / "table.toml").write_text(f'[[row]]\ninputs = ["{file.name}"]\n{row}\n')
    return grade(read_table(tmp_path / "table.toml")[0], diagnosed([file])).grade


@pytest.mark.parametrize(
    ("file", "row", "expected"),
    [
        (HANG, 'right = ["engine_hang"]', "right"),
        (HANG, 'right = ["overload"]\nhonest = ["engine_hang"]', "honest"),
        (HANG, 'right = ["overload"]', "wrong"),
        (HANG, 'right = ["overload"]\nnever = ["engine_hang"]', "never"),
        (HANG, 'right = ["nothing"]', "wrong"),
        (HANG, 'right = [{ rule = "engine_hang", severity = "ticket" }]', "wrong"),
        (HANG, 'right = [{ rule = "engine_hang", sure = 0.5 }]', "wrong"),
        (HANG, 'right = [{ rule = "engine_hang", status = "resolved" }]', "wrong"),
        (HANG, 'right = [{ rule = "engine_hang", says = "moon" }]', "wrong"),
        (HANG, 'right = ["engine_hang"]\nsays = ["no_progress"]', "right"),
        (HANG, 'right = ["engine_hang"]\nsays = ["moon"]', "wrong"),
        (HANG, 'right = ["engine_hang"]\nsilent = ["NO_PROGRESS"]', "wrong"),
        (HANG, 'right = ["nothing"]\nnever = [{ rule = "engine_hang", sure = 0.99 }]', "wrong"),
        (HANG, 'right = ["nothing"]\nnever = [{ rule = "engine_hang", sure = 0.5 }]', "never"),
        (UNDECIDED, 'right = ["replica_imbalance"]', "honest"),
        (UNDECIDED, 'right = ["engine_hang"]', "wrong"),
        (HEALTHY, 'right = ["nothing"]', "right"),
        (HEALTHY, 'right = ["overload"]', "wrong"),
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else None,
)
def test_a_verdict_is_graded_by_its_row(tmp_path: Path, file: Path, row: str, expected: str):
    assert graded(tmp_path, file, row) == expected


def test_the_worst_input_of_a_row_counts_and_a_refusal_is_wrong(tmp_path: Path):
    (tmp_path / "healthy.log").write_bytes(HEALTHY.read_bytes())
    (tmp_path / "empty.log").write_bytes(b"")
    row = '[[row]]\ninputs = ["healthy.log", "empty.log"]\nright = ["nothing"]\n'
    (tmp_path / "table.toml").write_text(row + row.replace(', "empty.log"', ""))
    done = CliRunner().invoke(main, [str(tmp_path), "--least", "2"], catch_exceptions=False)
    assert done.output.splitlines()[-1] == "1 right, 0 honest, 1 wrong, 0 never; 1 of 2 right or honest"
    assert done.output.startswith("wrong   healthy.log")
    assert "empty" in done.output.splitlines()[0]
    assert done.exit_code == 1
    assert CliRunner().invoke(main, [str(tmp_path), "--least", "1"]).exit_code == 0


def test_a_key_that_is_not_known_is_refused(tmp_path: Path):
    (tmp_path / "table.toml").write_text('[[row]]\ninputs = ["a"]\nright = [{ rule = "x", onset = 3 }]\n')
    with pytest.raises(msgspec.ValidationError, match="onset"):
        read_table(tmp_path / "table.toml")
