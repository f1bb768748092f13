"""Evidence outlives the sidecar that saw it, and no client without the cluster's key can write any."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from pulsar_sidecar.features.ledger_deletion.record import SIGNING_KEY, is_signed
from pulsar_sidecar.features.ledger_deletion.watch.evidence import record_of
from pulsar_sidecar.features.ledger_deletion.watch.leaks import LEAKS, Evidence, LeakStore
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakCause
from pulsar_sidecar.model.errors import ConflictError, OutcomeUnknownError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent

from tests.fakes.metadata import FakeMetadataStore
from tests.unit.ledger_deletion.cases import CLAIMS, stored
from tests.unit.ledger_deletion.sidecars import CrashAt

DATA = CLAIMS[LedgerComponent.MANAGED_LEDGER]
PATH = "/managed-ledgers/public/default/persistent/orders"


@pytest.fixture
def leaks(store: FakeMetadataStore) -> LeakStore:
    return LeakStore(store, CrashAt())


def evidence(leaks: LeakStore, ledger_id: int = 7, dereferenced_ms: int | None = 5) -> Evidence:
    record = record_of(LedgerId(ledger_id), stored(DATA), DATA, "here", dereferenced_ms)
    return Evidence(leaks.signed(record), LeakCause.TRIM, PATH)


def test_new_store_has_no_leaks_and_no_key(leaks: LeakStore, store: FakeMetadataStore) -> None:
    assert leaks.all() == ([], [])
    assert store.peek(SIGNING_KEY) is None


@pytest.mark.parametrize("dereferenced_ms", [0, 5])
@pytest.mark.parametrize("appended_ms", [None, 0, 9])
@pytest.mark.parametrize("cause", LeakCause)
def test_evidence_round_trip(leaks: LeakStore, dereferenced_ms: int, appended_ms: int | None, cause: LeakCause) -> None:
    kept = [
        replace(evidence(leaks, ledger_id, dereferenced_ms), appended_ms=appended_ms, cause=cause)
        for ledger_id in (7, 2**63 - 1)
    ]
    for each in kept:
        leaks.keep(each)
    found, unknown = leaks.all()
    assert sorted(found, key=lambda each: each.record.ledger_id) == kept
    assert unknown == []
    assert {each.dereferenced_ms for each in found} == {dereferenced_ms}


def test_keep_replaces_earlier_evidence(leaks: LeakStore) -> None:
    leaks.keep(evidence(leaks))
    later = replace(evidence(leaks, dereferenced_ms=6), appended_ms=8)
    leaks.keep(later)
    assert leaks.all() == ([later], [])


def test_another_sidecar_reads_it_with_the_same_key(leaks: LeakStore, store: FakeMetadataStore) -> None:
    kept = evidence(leaks)
    leaks.keep(kept)
    store.end_session()
    assert LeakStore(store.other_session(), CrashAt()).all() == ([kept], [])
    key = store.peek(SIGNING_KEY)
    assert is_signed(kept.record, key.data)


def test_forget_is_idempotent(leaks: LeakStore) -> None:
    leaks.keep(evidence(leaks, 7))
    leaks.keep(evidence(leaks, 8))
    leaks.forget("7")
    leaks.forget("7")
    assert [each.record.ledger_id for each in leaks.all()[0]] == [8]


# --- ignored changes -------------------------------------------------------------------------------------------------


Change = Callable[[dict[str, object], dict[str, object], dict[str, object]], object]
"""Changes a node's document, its record, or the record's mark."""
CHANGES: dict[str, Change] = {
    "forged": lambda document, record, mark: mark.pop("signature"),
    "of another key": lambda document, record, mark: mark.update(signature="0" * 64),
    "of another time": lambda document, record, mark: mark.update(dereferencedMs=1),
    "of another ledger": lambda document, record, mark: record.update(ledgerId=8),
    "of another topic": lambda document, record, mark: record.update(topicName="persistent://public/default/other"),
    "of an unknown cause": lambda document, record, mark: document.update(cause="whim"),
    "without a record": lambda document, record, mark: document.pop("record"),
    "with a malformed record": lambda document, record, mark: record.update(more=1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_evidence_with_invalid_signature_is_ignored(leaks: LeakStore, store: FakeMetadataStore, change: str) -> None:
    leaks.keep(evidence(leaks, 7))
    kept = evidence(leaks, 9)
    leaks.keep(kept)
    node = store.peek(f"{LEAKS}/7")
    document = json.loads(node.data)
    CHANGES[change](document, document["record"], document["record"]["sidecar"])
    store.put(f"{LEAKS}/7", json.dumps(document).encode())
    assert leaks.all() == ([kept], [f"{LEAKS}/7"])


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"[" * 100_000])
def test_undecodable_evidence_is_ignored(leaks: LeakStore, store: FakeMetadataStore, data: bytes) -> None:
    store.put(f"{LEAKS}/7", data)
    assert leaks.all() == ([], [f"{LEAKS}/7"])


@pytest.mark.parametrize("name", ["8", "07", "x"])
def test_evidence_about_another_ledger_counts_for_nothing(
    leaks: LeakStore, store: FakeMetadataStore, name: str
) -> None:
    leaks.keep(evidence(leaks, 7))
    node = store.peek(f"{LEAKS}/7")
    store.put(f"{LEAKS}/{name}", node.data)
    found, unknown = leaks.all()
    assert ([each.record.ledger_id for each in found], unknown) == ([7], [f"{LEAKS}/{name}"])


def test_record_without_vanished_reference_is_not_evidence(leaks: LeakStore) -> None:
    leaks.keep(evidence(leaks, 7, None))
    assert evidence(leaks, 7, None).dereferenced_ms == 0
    assert leaks.all() == ([], [f"{LEAKS}/7"])


def test_under_a_new_key_all_that_was_kept_counts_for_nothing(leaks: LeakStore, store: FakeMetadataStore) -> None:
    leaks.keep(evidence(leaks))
    store.remove(SIGNING_KEY)
    assert leaks.all() == ([], [f"{LEAKS}/7"])


# --- failures --------------------------------------------------------------------------------------------------------


def test_a_node_that_went_in_between_is_tried_again(leaks: LeakStore, store: FakeMetadataStore) -> None:
    leaks.keep(evidence(leaks))
    store.before("read", lambda: store.remove(f"{LEAKS}/7"), path=f"{LEAKS}/7")
    with pytest.raises(TemporaryError, match=f"{LEAKS}/7 at the same moment"):
        leaks.keep(evidence(leaks))


def test_a_rivals_evidence_is_not_written_over_unread(leaks: LeakStore, store: FakeMetadataStore) -> None:
    leaks.keep(evidence(leaks))
    store.before("write", lambda: store.put(f"{LEAKS}/7", b"a rival's"))
    with pytest.raises(ConflictError):
        leaks.keep(evidence(leaks))
    assert store.peek(f"{LEAKS}/7").data == b"a rival's"


@pytest.mark.parametrize("applied", [True, False])
def test_an_unknown_outcome_is_never_taken_for_done(leaks: LeakStore, store: FakeMetadataStore, applied: bool) -> None:
    first = evidence(leaks)
    store.lose_answer_next("create", applied=applied)
    with pytest.raises(OutcomeUnknownError):
        leaks.keep(first)
    leaks.keep(first)
    store.lose_answer_next("delete", applied=applied)
    with pytest.raises(TemporaryError, match=f"the outcome of deleting {LEAKS}/7 is unknown"):
        leaks.forget("7")
    leaks.forget("7")
    assert leaks.all() == ([], [])


@pytest.mark.parametrize("method", ["children", "read_many"])
def test_failed_read_is_not_an_empty_list(leaks: LeakStore, store: FakeMetadataStore, method: str) -> None:
    leaks.keep(evidence(leaks))
    store.fail_next(method, TemporaryError("away"))
    with pytest.raises(TemporaryError):
        leaks.all()
