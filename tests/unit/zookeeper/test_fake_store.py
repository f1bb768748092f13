"""Special calls of the store in memory; its ordinary behaviour is held by the contract suite."""

import pytest
from pulsar_sidecar.model.errors import ConflictError, OutcomeUnknownError, TemporaryError
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.metadata import DeletionResult, GuardedDeletion

from tests.fakes.metadata import FakeMetadataStore

V0 = NodeVersion(0)


@pytest.fixture
def store() -> FakeMetadataStore:
    return FakeMetadataStore()


def test_a_failure_comes_once_and_has_no_effect(store: FakeMetadataStore) -> None:
    store.fail_next("create", TemporaryError("away"))
    with pytest.raises(TemporaryError):
        store.create("/a", b"")
    assert store.peek("/a") is None
    store.create("/a", b"")


def test_a_failure_of_one_path_leaves_others_alone(store: FakeMetadataStore) -> None:
    store.fail_next("read", TemporaryError("away"), path="/b", times=2)
    store.read("/a")
    for _ in range(2):
        with pytest.raises(TemporaryError):
            store.read("/b")
    assert store.read("/b") is None


def test_a_rivals_step_happens_just_before(store: FakeMetadataStore) -> None:
    store.put("/a", b"1")
    store.before("write", lambda: store.put("/a", b"rival"))
    with pytest.raises(ConflictError):
        store.write("/a", b"2", V0)


def test_a_rivals_step_between_two_deletions_of_one_call(store: FakeMetadataStore) -> None:
    for path in ("/a", "/b"):
        store.put(path)
    store.before("delete_many", lambda: store.put("/b", b"rival"), path="/b")
    results = store.delete_many([GuardedDeletion("/a", V0), GuardedDeletion("/b", V0)])
    assert results == [DeletionResult.DELETED, DeletionResult.CONFLICT]


@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_answer_proves_nothing_about_the_effect(store: FakeMetadataStore, *, applied: bool) -> None:
    store.put("/a")
    store.lose_answer_next("delete_many", applied=applied)
    assert store.delete_many([GuardedDeletion("/a", V0)]) == [DeletionResult.UNKNOWN]
    assert (store.peek("/a") is None) is applied
    store.lose_answer_next("create", applied=applied)
    with pytest.raises(OutcomeUnknownError):
        store.create("/b", b"")
    assert (store.peek("/b") is not None) is applied


def test_an_ended_session_loses_its_ephemeral_nodes_only(store: FakeMetadataStore) -> None:
    other = store.other_session()
    store.create("/s/mine", b"", ephemeral=True)
    other.create("/s/theirs", b"", ephemeral=True)
    epoch = store.epoch
    store.end_session()
    assert store.children("/s") == ["theirs"]
    assert store.epoch == epoch + 1
