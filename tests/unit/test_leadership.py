"""One sidecar of all leads at a time; when it dies, another takes over."""

from dataclasses import dataclass

import pytest
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.runtime import Leadership

from tests.fakes.metadata import FakeMetadataStore

LEADER = "/pulsar-sidecar/leader"
ONE, TWO = b"one, since 1", b"two, since 2"


@dataclass
class Pair:
    store: FakeMetadataStore
    other_store: FakeMetadataStore
    one: Leadership
    two: Leadership

    @property
    def leader(self) -> bytes | None:
        node = self.store.peek(LEADER)
        return None if node is None else node.data


@pytest.fixture
def pair() -> Pair:
    store = FakeMetadataStore()
    other = store.other_session()
    return Pair(store, other, Leadership(store, LEADER, ONE), Leadership(other, LEADER, TWO))


def test_the_first_leads_and_goes_on_leading(pair: Pair) -> None:
    assert pair.leader is None
    assert pair.one.take()
    assert not pair.two.take()
    assert pair.one.take()
    assert pair.leader == ONE
    node = pair.store.peek(LEADER)
    assert node is not None
    assert node.ephemeral


def test_when_its_session_ends_another_takes_over(pair: Pair) -> None:
    assert pair.one.take()
    pair.store.end_session()
    assert pair.leader is None
    assert pair.two.take()
    assert not pair.one.take()
    assert pair.leader == TWO


def test_resigning_leader_is_replaced_immediately(pair: Pair) -> None:
    assert pair.one.take()
    pair.two.resign()
    assert pair.leader == ONE
    pair.one.resign()
    assert pair.two.take()
    pair.one.resign()
    assert pair.leader == TWO


def test_concurrent_candidates_elect_one_leader(pair: Pair) -> None:
    pair.store.before("create", pair.two.take)
    assert not pair.one.take()
    assert pair.leader == TWO


def test_an_earlier_life_under_the_same_name_is_another_leader(pair: Pair) -> None:
    later = Leadership(pair.other_store, LEADER, b"one, since 5")
    assert pair.one.take()
    assert not later.take()
    later.resign()
    assert pair.leader == ONE


def test_unreadable_leader_node_is_left_alone(pair: Pair) -> None:
    pair.store.put(LEADER, b"?")
    assert not pair.one.take()
    pair.one.resign()
    assert pair.store.peek(LEADER) is not None


def test_a_store_that_does_not_answer_makes_no_leader(pair: Pair) -> None:
    pair.store.fail_next("read", TemporaryError("away"))
    with pytest.raises(TemporaryError):
        pair.one.take()
    pair.store.fail_next("create", TemporaryError("away"))
    with pytest.raises(TemporaryError):
        pair.one.take()
    assert pair.one.take()
