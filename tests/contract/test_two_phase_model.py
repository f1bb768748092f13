"""Guarantees of the protocol's model, and the real worker's traces as behaviours of it.

Alloy needs Java and, once, Maven, so this is no part of ``make check``.
"""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.model import alloy
from tests.model.alloy import AlloyError, Answer
from tests.model.traces import Event, Trace, illegal, known_traces


@pytest.fixture(scope="module")
def answers() -> Mapping[str, Answer]:
    """Every command of the model, run once."""
    return alloy.solve(list(alloy.commands().values()))


@pytest.mark.parametrize("name", alloy.commands())
def test_a_command_finds_what_it_should_and_nothing_else(answers: Mapping[str, Answer], name: str) -> None:
    answer = answers[name]
    assert answer.expected is not None, "the command does not say what it expects"
    assert answer.found is answer.expected, answer.behaviour


def test_every_rule_that_can_be_left_out_is() -> None:
    omissions = {
        line.split()[3] for line in alloy.theory().splitlines() if line.startswith("pred") and "Omitted" in line
    }
    tried = {text.partition("Omitted = ")[2].split()[0] for text in alloy.commands().values() if "Omitted = " in text}
    assert omissions == tried


def test_a_model_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(AlloyError, match="yntax"):
        alloy.solve(["run nonsense { for"], model="sig A {}")


# --- traces ----------------------------------------------------------------------------------------------------------

JUDGED = Event("Judges", 0, ledger=0, owner=0)
DELETED = Event("Deleted", 0, ledger=0, owner=0)
GONE = Event("Gone", 0)
NEVER = {
    "deleted without a judgement": Trace((DELETED,)),
    "deleted twice": Trace((JUDGED, DELETED, DELETED)),
    "deleted by another than who judged": Trace((JUDGED, replace(DELETED, actor=1))),
    "deleted at an older version than was judged": Trace((replace(JUDGED, ledger=1), DELETED)),
    "judged again after it was gone": Trace((GONE, JUDGED)),
    "in use for good although the marker may still shrink the list": Trace((Event("InUse", 0, 0, 0, marked=0),)),
    "sent again and never heard of since": Trace((Event("SentAgain", 0),)),
}


@pytest.fixture(scope="module")
def refused() -> set[Trace]:
    """Return the traces that the model refuses, known ones and forbidden ones, in one run."""
    return illegal([*known_traces(), *NEVER.values()])


def test_every_known_trace_is_a_behaviour_of_the_model(refused: set[Trace]) -> None:
    assert known_traces()
    assert not refused & set(known_traces())


@pytest.mark.parametrize("what", NEVER)
def test_what_must_never_happen_is_no_behaviour_of_the_model(refused: set[Trace], what: str) -> None:
    assert NEVER[what] in refused
