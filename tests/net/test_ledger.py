"""The net's own files and arithmetic: every difference has a row with a reason, every row a difference."""

from pathlib import Path

import msgspec
import pytest

from tests.net import inputs, ledger, packaging
from tests.net.ledger import Row
from tests.net.outcome import Change, Named, Outcome, difference
from tests.net.product import has_two_judges

SHORTEST_REASON = 30


def named(rule: str = "overload", severity: str = "page", onset_s: int | None = 60, **more: object) -> Named:
    whole = {"mechanism": "batch_full", "subject": "shim", "status": "open", **more}
    return Named(severity=severity, rule=rule, onset_s=onset_s, **whole)  # type: ignore[arg-type]


OVERLOAD = Outcome((named(),), (Change("opened", "overload", 75),))


def test_every_input_has_a_golden_outcome_and_every_outcome_an_input():
    assert set(ledger.golden()) == set(inputs.all_keys())


def test_the_net_is_wide():
    """Healthy controls and incidents, from files and from simulations, with transitions; nothing refused to be played."""
    golden = ledger.golden()
    refused = [key for key, one in golden.items() if one.refused]
    titles = {i.rule for one in golden.values() for i in one.verdict}
    assert len(titles) >= 20
    assert sum(bool(one.transitions) for one in golden.values()) > 100
    assert len(refused) < 0.05 * len(golden)


def test_the_ledger_is_about_inputs_that_are_there_and_says_why():
    known = {*inputs.all_keys(), *packaging.all_keys(), *(f"judges/{key}" for key in inputs.all_keys())}
    assert [key for key in ledger.row_by_key() if key not in known] == []
    assert [row.keys for row in ledger.rows() if len(row.why) < SHORTEST_REASON] == []


def test_where_there_is_one_judge_no_row_speaks_of_two():
    assert has_two_judges() or [key for key in ledger.row_by_key() if key.startswith("judges/")] == []


def test_an_approved_outcome_has_a_row_that_says_how_it_differs():
    listed = {key: row for key, row in ledger.row_by_key().items() if not key.startswith(("packaging/", "judges/"))}
    assert set(listed) == set(ledger.approved())
    differs = {key: difference(ledger.golden()[key], one) for key, one in ledger.approved().items()}
    assert differs == {key: (row.was, row.now) for key, row in listed.items()}


@pytest.mark.parametrize(
    "other",
    [
        Outcome((named(onset_s=62),), OVERLOAD.transitions),
        Outcome(OVERLOAD.verdict, (Change("opened", "overload", 73),)),
    ],
)
def test_two_seconds_are_no_difference(other: Outcome):
    assert difference(OVERLOAD, other) is None


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (Outcome(), ("page overload (batch_full)", "nothing")),
        (Outcome(refused="a.log: empty"), ("page overload (batch_full)", "refused: a.log: empty")),
        (
            Outcome((named(severity="ticket"),), OVERLOAD.transitions),
            ("page overload (batch_full)", "ticket overload (batch_full)"),
        ),
        (Outcome((named(onset_s=63),), OVERLOAD.transitions), ("overload: onset 60 s", "overload: onset 63 s")),
        (Outcome((named(onset_s=None),), OVERLOAD.transitions), ("overload: onset 60 s", "overload: onset unknown")),
        (
            Outcome((named(symptoms=("length_shift",)),), OVERLOAD.transitions),
            ("overload: symptoms none", "overload: symptoms length_shift"),
        ),
        (Outcome(OVERLOAD.verdict), ("opened overload at 75 s", "no transition")),
        (
            Outcome(OVERLOAD.verdict, (Change("opened", "overload", 75), Change("resolved", "overload", 90))),
            ("opened overload at 75 s", "opened overload at 75 s, resolved overload at 90 s"),
        ),
    ],
    ids=["gone", "refused", "severity", "onset", "no onset", "symptom", "no transition", "resolved"],
)
def test_what_differs_is_said_in_words(other: Outcome, words: tuple[str, str]):
    assert difference(OVERLOAD, other) == words


def test_what_is_written_is_what_is_read(tmp_path: Path):
    kept = {"cases/a": OVERLOAD, "scenarios/x/h100/1/full": Outcome(), "cases/b": Outcome(refused="no")}
    ledger.keep(tmp_path, kept)
    assert ledger.outcomes(tmp_path) == kept
    assert [file.stem for file in sorted(tmp_path.iterdir())] == ["cases", "scenarios-h100-1"]
    ledger.keep(tmp_path, {"cases/a": OVERLOAD})
    assert ledger.outcomes(tmp_path) == {"cases/a": OVERLOAD}


def test_keys_with_the_same_difference_share_a_row(tmp_path: Path):
    now = 'b "x" \\ é'
    rows = [Row("a", now, "because", ("k2",)), Row("a", now, "because", ("k1",)), Row("a", "c", "so", ("k3",))]
    ledger.keep_rows(rows, tmp_path / "ledger.toml")
    assert ledger.rows(tmp_path / "ledger.toml") == [Row("a", now, "because", ("k1", "k2")), rows[2]]


def test_an_outcome_is_held_against_the_approved_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ledger, "golden", lambda: {"k": OVERLOAD})
    assert ledger.trouble("k", OVERLOAD) == ""
    assert "is  nothing" in ledger.trouble("k", Outcome())
    assert "not in golden" in ledger.trouble("new", Outcome())
    monkeypatch.setattr(ledger, "approved", lambda: {"k": Outcome()})
    assert ledger.trouble("k", Outcome()) == ""
    assert "is as it was" not in ledger.trouble("k", Outcome((named("engine_hang"),)))
    assert ledger.trouble("k", OVERLOAD) != ""


def test_a_difference_between_two_ways_needs_its_row(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ledger, "row_by_key", lambda: {"k": Row("a", "b", "because", ("k",))})
    assert ledger.unlisted("k", ("a", "b")) == ""
    assert "--approve" in ledger.unlisted("k", ("a", "c"))
    assert "no longer differs" in ledger.unlisted("k", None)
    assert ledger.unlisted("other", None) == ""
    assert "--approve" in ledger.unlisted("other", ("a", "b"))


def test_a_row_without_its_parts_is_refused(tmp_path: Path):
    (tmp_path / "ledger.toml").write_text('[[row]]\nfrom = "a"\n')
    with pytest.raises(msgspec.ValidationError, match="to"):
        ledger.rows(tmp_path / "ledger.toml")
