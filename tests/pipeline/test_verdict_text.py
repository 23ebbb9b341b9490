"""The verdict as JSON that its schema accepts, and as a screen of text that no engine can paint on."""

import json
import math
from pathlib import Path

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.incidents.verdict import text, to_json
from gpuwatch.model import Change, Culprit, Evidence, Verdict
from gpuwatch.testing import ToyEngine

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "verdict.schema.json").read_text())
NASTY = "\x1b[31mred\x1b]0;owned\x07\u202e\x00\r\n<script>alert(1)</script>"


@pytest.fixture(scope="module")
def verdict() -> Verdict:
    """A hang on a device-less toy engine: an incident, blind rules, sources."""
    toy = ToyEngine()
    toy.load(4)
    toy.run(40)
    toy.hung = True
    toy.run(70)
    return toy.pipeline.verdict()


def test_the_json_satisfies_the_published_schema(verdict):
    jsonschema.validate(json.loads(to_json(verdict)), SCHEMA)


def test_floats_have_six_digits_and_times_milliseconds(verdict):
    told = json.loads(to_json(verdict))
    (incident,) = told["incidents"]
    assert incident["onset_at"] == round(incident["onset_at"], 3)
    for row in incident["evidence"]:
        if isinstance(row["observed"], float):
            assert float(f"{row['observed']:.6g}") == row["observed"]


@given(st.floats())
def test_what_is_not_known_is_null_and_never_nan(value):
    evidence = Evidence("x", value)
    told = json.loads(to_json(Verdict(1, (), None, (), ()))) | {"e": None}
    assert told["incidents"] == []
    one = msgspec.json.decode(to_json(evidence))  # type: ignore[arg-type]
    assert one["observed"] is None if not math.isfinite(value) else one["observed"] == pytest.approx(value, rel=1e-5)


def test_the_text_fits_a_screen_and_says_what_to_do(verdict):
    shown = text(verdict)
    assert shown.startswith("PAGE  engine_hang")
    assert all(len(line) <= 100 for line in shown.splitlines())
    for word in ("what", "impact", "evidence", "not", "do ", "do not", "state"):
        assert f"{word}" in shown
    assert len(shown.splitlines()) <= 60


def test_a_quiet_verdict_says_so():
    assert text(Verdict(1, (), None, (), ())).startswith("No incident.")


def test_no_escape_code_of_an_engine_reaches_the_terminal(verdict):
    """Engine names, models, changes, culprits and evidence come from outside."""
    (incident,) = verdict.incidents
    painted = msgspec.structs.replace(
        incident,
        subject={"engine": NASTY, "rank": 0, "gpu": NASTY, "model": NASTY},
        summary=NASTY,
        mechanism=NASTY,
        culprits=(Culprit("request", NASTY, 0.5, NASTY),),
        changes=(Change(NASTY, 1.0),),
        evidence=(Evidence(NASTY, NASTY, NASTY, NASTY, 1.0, NASTY),),
    )
    shown = text(msgspec.structs.replace(verdict, incidents=(painted,)))
    assert all(c.isprintable() or c == "\n" for c in shown)
    assert "red" in shown
