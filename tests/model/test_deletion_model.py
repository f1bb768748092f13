"""Every order of marking, sending, shrinking, looking, deleting and dying, explored to the end with the real judgement.

The rules as they are delete nothing that is referenced and leave nothing behind; each rule left out has a
counterexample, so each is needed (docs/decisions/0002-in-use-is-final.md).
"""

from dataclasses import replace
from functools import cache

import pytest
from pulsar_sidecar.features.ledger_deletion.record import Mark
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import (
    DeletionPolicy,
    Facts,
    Keep,
    OutcomeReason,
    Referenced,
    Unreferenced,
    Verdict,
    decide,
)

from tests.model.deletion_model import IN_USE_WAIT_TICKS, Marker, Rules, State, late_link, successors
from tests.model.exploring import Exploration, explore


@cache
def explored(rules: Rules) -> Exploration[State]:
    return explore(State(), lambda state: successors(state, rules))


def broken(exploration: Exploration[State]) -> list[State]:
    return [state for state in exploration.states if state.broken]


def left_behind(exploration: Exploration[State]) -> list[State]:
    return [state for state in exploration.ends() if state.orphaned]


# --- the rules as they are -------------------------------------------------------------------------------------------

MARKERS = (Marker.CAS, Marker.PLAIN, Marker.OPERATION)
EVERY_MARKER = pytest.mark.parametrize("marker", MARKERS)


@EVERY_MARKER
def test_nothing_referenced_is_ever_deleted(marker: Marker) -> None:
    exploration = explored(Rules(marker))
    found = broken(exploration)
    assert not found, exploration.path_to(found[0])


@EVERY_MARKER
def test_no_end_leaves_an_unreferenced_ledger_behind(marker: Marker) -> None:
    exploration = explored(Rules(marker))
    found = left_behind(exploration)
    assert not found, exploration.path_to(found[0])


@EVERY_MARKER
def test_an_end_can_be_reached_from_everywhere(marker: Marker) -> None:
    exploration = explored(Rules(marker))
    stuck = exploration.without_way_to(exploration.ends())
    assert not stuck, exploration.path_to(next(iter(stuck)))


@EVERY_MARKER
def test_at_an_end_every_record_is_processed(marker: Marker) -> None:
    for state in explored(Rules(marker)).ends():
        assert state.copies == ()
        assert state.judged is None
        assert state.operation != "running"


@EVERY_MARKER
def test_every_intended_end_is_reached(marker: Marker) -> None:
    ends = explored(Rules(marker)).ends()
    assert any(not state.ledger and state.marker != "dead" for state in ends), "deleted"
    assert any(state.ledger and state.listed and not state.dead_letter for state in ends), "kept, in use"
    assert all(state.listed or not state.ledger or state.dead_letter for state in ends)


def test_every_kind_of_judgement_is_passed() -> None:
    cas, plain, operation = (explored(Rules(marker)).labels for marker in MARKERS)
    assert "a consumer judges: ledger-still-in-use, final" in cas & plain & operation
    assert "a consumer judges: in-use-before-list-shrinks, retry" in cas & plain & operation
    assert "a consumer judges: already-gone, final" in cas & plain & operation
    assert "a consumer judges: delete" in cas & plain & operation
    assert "gone or changed: to be judged again" in cas & plain
    assert "a consumer judges: in-use-before-list-shrinks, retry, dead letter" in cas
    assert "the broker refuses" in operation
    assert "the ledger is deleted, and the consumer dies" in cas & plain & operation


def test_a_marker_with_a_fence_may_be_as_slow_as_it_likes() -> None:
    exploration = explored(Rules(Marker.CAS))
    late = [state for state in exploration.states if state.dead_letter and state.marker == "sent"]
    assert late
    assert not left_behind(exploration)


# --- every rule is needed --------------------------------------------------------------------------------------------


def without_the_in_use_check(facts: Facts, policy: DeletionPolicy) -> Verdict:
    found = facts.references
    return decide(
        replace(facts, references=Unreferenced((found.by,))) if isinstance(found, Referenced) else facts, policy
    )


def final_at_the_first_look(facts: Facts, policy: DeletionPolicy) -> Verdict:
    if facts.ledger is not None and isinstance(facts.references, Referenced):
        return Keep(OutcomeReason.IN_USE, "at the first look")
    return decide(facts, policy)


def without_the_fence(facts: Facts, policy: DeletionPolicy) -> Verdict:
    return decide(replace(facts, record=facts.record.marked(Mark())), policy)


def without_running_operations(facts: Facts, policy: DeletionPolicy) -> Verdict:
    return decide(replace(facts, operation_running=False), policy)


def final_once_the_operation_ended(facts: Facts, policy: DeletionPolicy) -> Verdict:
    ended = facts.record.mark.operation_id is not None and not facts.operation_running
    return final_at_the_first_look(facts, policy) if ended else decide(facts, policy)


@EVERY_MARKER
def test_without_the_in_use_check_live_data_goes(marker: Marker) -> None:
    exploration = explored(Rules(marker, decide=without_the_in_use_check))
    found = broken(exploration)
    assert found
    assert "the list shrinks" not in exploration.path_to(found[0])


def test_a_list_that_shrinks_before_the_record_is_sent_leaves_orphans() -> None:
    for marker in (Marker.CAS, Marker.PLAIN):
        exploration = explored(Rules(marker, list_first=True))
        path = exploration.path_to(left_behind(exploration)[0])
        assert [action for action in path if "topic gains" not in action] == [
            "the marker reads the list",
            "the list shrinks",
            "the marker dies",
        ]


@EVERY_MARKER
def test_in_use_at_the_first_look_is_too_early(marker: Marker) -> None:
    exploration = explored(Rules(marker, decide=final_at_the_first_look))
    path = exploration.path_to(left_behind(exploration)[0])
    assert "a consumer judges: ledger-still-in-use, final" in path


def test_a_fence_is_needed_where_a_marker_is_slow() -> None:
    exploration = explored(Rules(Marker.CAS, decide=without_the_fence))
    assert exploration.path_to(left_behind(exploration)[0]).count("five minutes pass") >= IN_USE_WAIT_TICKS


def test_a_running_operation_must_be_looked_at_where_brokers_are_slow() -> None:
    exploration = explored(Rules(Marker.OPERATION, decide=without_running_operations))
    assert left_behind(exploration)


def test_an_operation_that_ended_may_have_a_broker_still_at_work() -> None:
    exploration = explored(Rules(Marker.OPERATION, decide=final_once_the_operation_ended))
    path = exploration.path_to(left_behind(exploration)[0])
    assert path.index("the broker refuses") < path.index("the broker removes the topic's node")


@pytest.mark.parametrize("marker", [Marker.PLAIN, Marker.OPERATION])
def test_what_remains_a_marker_slower_than_the_in_use_wait(marker: Marker) -> None:
    """The known limit: without a fence a slow broker looks like one that gave up. The audit finds these."""
    exploration = explored(Rules(marker, patience=IN_USE_WAIT_TICKS))
    path = exploration.path_to(left_behind(exploration)[0])
    assert path.count("five minutes pass") >= IN_USE_WAIT_TICKS
    assert not broken(exploration)


# --- owners of bundles are asked -------------------------------------------------------------------------------------


@cache
def owned(rules: Rules, moves: int = 2) -> Exploration[State]:
    return explore(late_link(moves), lambda state: successors(state, rules))


OWNED = Rules(Marker.OWNER)


def test_whoever_owns_the_bundle_nothing_is_deleted_that_is_referenced_or_ever_will_be() -> None:
    exploration = owned(OWNED)
    found = broken(exploration)
    assert not found, exploration.path_to(found[0])
    assert any(not state.ledger for state in exploration.states)
    assert {"broker 0 links the ledger", "stale broker 0 trims the ledger"} <= exploration.labels
    assert "stale broker 0 links the ledger" not in exploration.labels


def test_a_stale_broker_s_reader_may_lose_its_ledger() -> None:
    """A weaker guarantee: no sidecar queries a broker that has lost the bundle."""
    gone = [state for state in owned(OWNED).states if not state.ledger]
    assert any(held is not None and held.stale and held.reads for state in gone for held in state.brokers)


def test_a_loaded_topic_is_found_while_its_bundle_moves_once() -> None:
    assert not any(state.missed for state in owned(OWNED, 1).states)
    assert "the owner has changed, all brokers are asked" in owned(OWNED, 1).labels


def test_without_the_second_reading_of_the_owner_a_loaded_topic_is_missed() -> None:
    exploration = owned(replace(OWNED, reread=False), 1)
    path = exploration.path_to(next(state for state in exploration.states if state.missed))
    assert path.index("a consumer reads the owner") < path.index("broker 1 loads the topic")


def test_without_versions_a_stale_broker_references_what_is_gone() -> None:
    exploration = owned(replace(OWNED, versioned=False))
    path = exploration.path_to(broken(exploration)[0])
    assert "the owner loses the bundle" in path
    assert path[-1].endswith("links the ledger")


def test_without_the_question_the_owner_references_what_is_gone() -> None:
    exploration = owned(replace(OWNED, asked=False))
    path = exploration.path_to(broken(exploration)[0])
    assert path[-1] == "broker 0 links the ledger"


def test_what_remains_a_stale_broker_that_links_late_what_it_made_long_ago() -> None:
    """The known limit: neither a version nor a question stops a first link that is later than the minimum age."""
    exploration = owned(replace(OWNED, late_stale_links=True))
    path = exploration.path_to(broken(exploration)[0])
    assert path[-1] == "stale broker 0 links the ledger"
    assert not any("broker 1 loads" in action for action in path)
