"""Every order of opening a topic, deleting it, noting that and dying, explored to the end.

Shows what the waits of a topic deletion are for, and which of them could go (docs/decisions/0024).
"""

import pytest

from tests.model.exploring import Exploration, explore
from tests.model.topic_load_model import Load, Note, Rules, State, successors

CONNECTED = "a client connects, the owner opens the topic"


def explored(start: State, rules: Rules) -> Exploration[State]:
    return explore(start, lambda state: successors(state, rules))


def lost(start: State, load: Load) -> list[str]:
    """Return the shortest way to a ledger that nothing references and no record names; nothing if there is none."""
    exploration = explored(start, Rules(load))
    return next((exploration.path_to(state) for state in exploration.states if state.lost), [])


# --- the load --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("owned", [False, True])
def test_a_topic_that_is_loaded_first_leaves_no_ledger(owned: bool) -> None:
    start = State(owned=owned, connections=2)
    assert lost(start, Load.ALL) == []
    exploration = explored(start, Rules())
    assert {state.sidecar for state in exploration.ends()} == {"deleted"}
    assert {CONNECTED, "the owner fences and deletes the topic"} <= exploration.labels


def test_without_the_load_the_request_alone_leaves_a_ledger_where_no_broker_owns_the_bundle() -> None:
    assert lost(State(), Load.NONE) == [
        "the sidecar records what is listed",
        "a broker becomes the owner",
        "the owner reads the list to delete it",
        "the owner opens the topic unasked",
        "the owner creates a ledger",
        "the owner links the ledger",
        "the owner deletes what it read, and the node",
    ]


def test_without_the_load_a_client_suffices_where_a_broker_owns_the_bundle() -> None:
    assert lost(State(owned=True), Load.OF_UNOWNED_BUNDLES) == []
    assert lost(State(owned=True, connections=1), Load.OF_UNOWNED_BUNDLES) == [
        "the sidecar records what is listed",
        "the owner reads the list to delete it",
        CONNECTED,
        "the owner creates a ledger",
        "the owner links the ledger",
        "the owner deletes what it read, and the node",
    ]


def test_without_the_load_an_owner_that_goes_away_suffices_too() -> None:
    path = lost(State(owned=True, unloads=1), Load.OF_UNOWNED_BUNDLES)
    assert path.index("the sidecar records what is listed") < path.index("the owner unloads the bundle")
    assert path.index("the owner unloads the bundle") < path.index("the owner opens the topic unasked")


def test_what_remains_an_owner_that_goes_away_between_the_load_and_the_deletion() -> None:
    path = lost(State(owned=True, unloads=1), Load.ALL)
    assert path[path.index("the sidecar finds nothing new") :] == [
        "the sidecar finds nothing new",
        "the owner unloads the bundle",
        "a broker becomes the owner",
        "the owner reads the list to delete it",
        "the owner opens the topic unasked",
        "the owner creates a ledger",
        "the owner links the ledger",
        "the owner deletes what it read, and the node",
    ]


def test_what_remains_an_owner_that_is_killed_before_it_links_the_ledger() -> None:
    path = lost(State(owned=True, kills=1), Load.ALL)
    assert path[-2:] == ["the owner creates a ledger", "the owner is killed"]


def test_what_remains_a_topic_that_cannot_be_loaded() -> None:
    path = lost(State(failures=1), Load.ALL)
    assert path.index("the load fails") < path.index("the owner reads the list to delete it")


# --- the note --------------------------------------------------------------------------------------------------------


def noting(note: Note) -> Exploration[State]:
    return explored(State(owned=True, crashes=1, failures=1), Rules(note=note))


@pytest.mark.parametrize("note", [Note.BEFORE_END, Note.BEFORE_RESPONSE, Note.BESIDE_END])
def test_a_caller_with_a_response_has_a_note_unless_the_outcome_topic_refused_it(note: Note) -> None:
    states = list(noting(note).states)
    assert not any(state.answered and not state.noted and not state.refused for state in states)
    assert any(state.answered and state.noted for state in states)
    assert any(state.answered and state.refused for state in states)


def test_a_note_after_the_response_may_never_be_stored() -> None:
    exploration = noting(Note.AFTER_RESPONSE)
    path = next(exploration.path_to(state) for state in exploration.states if state.unnoted and state.answered)
    assert path[-2:] == ["the caller gets a response", "the sidecar dies"]


@pytest.mark.parametrize("note", Note)
def test_a_sidecar_that_dies_leaves_no_note_or_lets_its_successor_store_a_second(note: Note) -> None:
    """Each order has a price, the caller has no response then; stored beside the end, a note may cost either."""
    dead = [state for state in noting(note).states if state.sidecar == "dead" and not state.answered]
    is_missing = any(state.unnoted for state in dead)
    is_doubled = any(state.noted and not state.ended for state in dead)
    assert is_missing == (note is not Note.BEFORE_END)
    assert is_doubled == (note in (Note.BEFORE_END, Note.BESIDE_END))
