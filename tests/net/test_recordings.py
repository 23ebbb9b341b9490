"""Public cases, recorded pages and old capsules give the outcome that they gave when the net began."""

from tests.net.inputs import Ran
from tests.net.playing import has_one_answer, inputs_of, is_as_expected

FILES = ("cases/", "captures/")


@inputs_of(lambda key: key.startswith((*FILES, "capsules/")))
def test_the_outcome_is_the_one_that_is_kept(ran: tuple[str, Ran]):
    is_as_expected(ran)


@inputs_of(lambda key: key.startswith(FILES))
def test_the_two_judges_agree_or_the_ledger_says_why(ran: tuple[str, Ran]):
    has_one_answer(ran)
