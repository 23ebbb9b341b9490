"""One test module for each kind of input, so that several workers share them: what all of these modules have in common."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.net import inputs, ledger
from tests.net.inputs import Ran
from tests.net.product import has_two_judges


def inputs_of(chosen: Callable[[str], bool]) -> pytest.MarkDecorator:
    """Each chosen input is played once for all tests of a module; what is not in the slice waits for the night."""
    night = {key: () if inputs.in_slice(key) else (pytest.mark.nightly,) for key in inputs.all_keys() if chosen(key)}
    given = [pytest.param(key, id=key, marks=marks) for key, marks in night.items()]
    return pytest.mark.parametrize("ran", given, indirect=True, scope="module")


def is_as_expected(ran: tuple[str, Ran]) -> None:
    """The golden outcome, or the approved one."""
    key, one = ran
    assert ledger.trouble(key, one.outcome) == "", f"\n{ledger.trouble(key, one.outcome)}"


def has_one_answer(ran: tuple[str, Ran]) -> None:
    """Pipeline and clues name the same classes, or one of them names none, or the ledger says why not."""
    key, one = ran
    if one.judges is None:
        assert one.outcome.refused or not has_two_judges()
        return
    wrong = ledger.unlisted(f"judges/{key}", inputs.disagreement(one.judges))
    assert wrong == "", f"\n{wrong}"
