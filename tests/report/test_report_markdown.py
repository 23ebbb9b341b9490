"""The Markdown postmortem: golden text, and nothing that an engine says becomes markup."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuwatch.model import Culprit
from gpuwatch.report import render_markdown
from gpuwatch.report.markdown import code, escaped
from tests.report import sample
from tests.report.golden import CASES, FOLDER


@pytest.mark.parametrize("name", CASES)
def test_the_words_are_the_golden_ones(name: str) -> None:
    """Regenerate with `python -m tests.report.golden` and review the difference."""
    assert render_markdown(CASES[name]()) == (FOLDER / f"{name}.md").read_text("utf-8")


def test_hostile_strings_stay_text() -> None:
    """No tag, link or image, and no table row is broken in two."""
    text = render_markdown(sample.hostile())
    outside = re.sub(r"(?<![\\`])(`+)(?!`).*?(?<!`)\1(?!`)", "", text)  # code spans show what they hold
    assert "<script" not in outside
    assert "<img" not in outside
    assert "](http" not in outside.replace("\\]", "")
    table = [line for line in text.splitlines() if line.startswith("| ") and "evil" in line]
    assert table
    assert all(line.replace("\\|", "").count("|") in (5, 6) for line in table)


@settings(deadline=None)
@given(st.text(max_size=200))
def test_escaped_text_has_no_live_markup(text: str) -> None:
    """One line, and every special character is either gone or escaped."""
    out = escaped(text)
    assert "\n" not in out
    assert "<" not in out
    assert ">" not in out
    for special in "`*[]|":
        assert out.replace("\\\\", "").count(special) == out.replace("\\\\", "").count("\\" + special)


@settings(deadline=None)
@given(st.text(max_size=200))
def test_a_code_span_cannot_be_left(text: str) -> None:
    """The fence is longer than any run of backticks inside."""
    out = code(text)
    if out:
        fence = len(out) - len(out.lstrip("`"))
        inside = out[fence:-fence]
        assert "`" * fence not in inside.replace(" ", "")


@pytest.mark.parametrize(
    ("detail", "said"),
    [
        ("holds 46 blocks, prompt 9 tokens", "46 % of the KV in use"),
        ("head of the queue: 9 tokens need 46 of 100 blocks", "46 % of the pool"),
    ],
)
def test_a_culprits_share_says_of_what(detail: str, said: str) -> None:
    """A holder has a part of what is held, the head of the queue needs a part of the pool."""
    data = sample.report()
    incident = replace(data.incident, culprits=(Culprit("request", "a3", 0.46, detail),))
    assert f"{detail}, {said}" in render_markdown(replace(data, incident=incident))
