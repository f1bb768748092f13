"""Every order of opening a topic, deleting it, noting that and dying, explored to the end.

Shows what the waits of a topic deletion are for, and which of them could go (docs/decisions/0024).
"""

import pytest

from tests.model.exploring import Exploration, explore
from tests.model.topic_load_model import Load, Note, Rules, State, successors

CONNECTED, KILLED = "a client connects, the owner opens the topic", "the broker is killed"
EVERY_OWNERSHIP = pytest.mark.parametrize("owned", [False, True])


def explored(start: State, rules: Rules) -> Exploration[State]:
    return explore(start, lambda state: successors(state, rules))


def shortest(exploration: Exploration[State], states: list[State]) -> list[str]:
    return min((exploration.path_to(state) for state in states), key=len)


def orphaned(exploration: Exploration[State]) -> list[State]:
    return [state for state in exploration.states if state.orphaned]


# --- the load --------------------------------------------------------------------------------------------------------


@EVERY_OWNERSHIP
def test_a_topic_that_is_loaded_first_leaves_no_ledger(owned: bool) -> None:
    exploration = explored(State(owned=owned, connections=2), Rules())
    found = orphaned(exploration)
    assert not found, exploration.path_to(found[0])
    assert {state.sidecar for state in exploration.ends()} == {"deleted"}
    assert CONNECTED in exploration.labels
    assert "the owner fences and deletes the topic" in exploration.labels


def test_without_the_load_the_request_alone_leaves_a_ledger_where_no_broker_owns_the_bundle() -> None:
    exploration = explored(State(), Rules(Load.NONE))
    path = shortest(exploration, orphaned(exploration))
    assert path[:2] == [
        "the sidecar records what is listed",
        "a broker becomes the owner for the request, and opens the topic",
    ]


def test_without_the_load_a_client_is_needed_where_a_broker_owns_the_bundle() -> None:
    rules = Rules(Load.OF_UNOWNED_BUNDLES)
    for owned in (False, True):
        assert not orphaned(explored(State(owned=owned), rules))
    exploration = explored(State(owned=True, connections=1), rules)
    assert CONNECTED in shortest(exploration, orphaned(exploration))


def test_what_remains_a_broker_that_is_killed_while_it_opens_the_topic() -> None:
    """The known limit of decision 6: only that broker knew the ledger that it had not linked yet."""
    exploration = explored(State(owned=True, kills=1), Rules())
    assert KILLED in shortest(exploration, orphaned(exploration))


# --- the note --------------------------------------------------------------------------------------------------------


def noting(note: Note) -> Exploration[State]:
    return explored(State(owned=True, crashes=1), Rules(note=note))


@pytest.mark.parametrize("note", [Note.BEFORE_END, Note.BEFORE_RESPONSE, Note.BESIDE_END])
def test_a_caller_with_a_response_has_a_note(note: Note) -> None:
    exploration = noting(note)
    assert not any(state.unnoted for state in exploration.states)
    assert any(state.answered and state.noted for state in exploration.ends())


def test_a_note_after_the_response_may_never_be_stored() -> None:
    exploration = noting(Note.AFTER_RESPONSE)
    path = shortest(exploration, [state for state in exploration.states if state.unnoted])
    assert path[-2:] == ["the caller gets a response", "the sidecar dies"]


@pytest.mark.parametrize("note", Note)
def test_only_a_note_before_the_end_is_never_missing(note: Note) -> None:
    """Otherwise a sidecar that dies right after the end leaves none; its caller has no response then."""
    missing = [state for state in noting(note).states if state.ended and not state.noted and state.sidecar == "dead"]
    assert bool(missing) == (note is not Note.BEFORE_END)
