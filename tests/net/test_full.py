"""Scenarios of which everything can be seen give the outcome that they gave when the net began."""

from tests.net.inputs import Ran
from tests.net.playing import has_one_answer, inputs_of, is_as_expected

each_input = inputs_of(lambda key: key.startswith("scenarios/") and key.endswith("/full"))


@each_input
def test_the_outcome_is_the_one_that_is_kept(ran: tuple[str, Ran]):
    is_as_expected(ran)


@each_input
def test_the_two_judges_agree_or_the_ledger_says_why(ran: tuple[str, Ran]):
    has_one_answer(ran)
