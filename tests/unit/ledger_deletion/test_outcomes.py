"""The outcome topic's notes can be read back, and forged ones restore nothing."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.ledger_deletion.outcomes import (
    MAX_MESSAGE_BYTES,
    Decision,
    LoggedLedger,
    RecordOutcome,
    _messages,
    judged_messages,
    logged_ledgers,
    note_message,
    settled_messages,
)
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import (
    Delete,
    DeleteOffloaded,
    OutcomeReason,
    Referenced,
    ReferencesUnknown,
    Unreferenced,
)
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import LedgerId

from tests.unit.ledger_deletion.cases import (
    CONTEXT,
    CREATED_MS,
    GUARD,
    LEDGER_ID,
    NOT_REFERENCED,
    facts,
    offload_record,
    record,
    stored,
    view,
)


def settled(decision: Decision, reason: OutcomeReason, detail: str, *record_and_facts: object) -> bytes:
    """The message about one outcome."""
    (payload,) = settled_messages("s", 5, [RecordOutcome(decision, reason, detail, "1:2:0", *record_and_facts)])
    return payload


CASE = facts()
VERDICT = Delete(stored(), (GUARD,))


def test_a_judgement_keeps_the_bytes_that_bring_the_ledger_back() -> None:
    (payload,) = judged_messages("sidecar-1", 5, [("1:2:0", CASE, VERDICT)])
    assert logged_ledgers(payload) == [LoggedLedger(LEDGER_ID, b"raw")]
    document = json.loads(payload)
    assert document["step"] == "judged"
    assert document["sidecar"] == "sidecar-1"
    (entry,) = document["entries"]
    assert entry["messageId"] == "1:2:0"
    assert entry["ledgerId"] == 7
    assert entry["topicName"] == "persistent://public/default/orders"
    assert entry["ledgerComponent"] == "MANAGED_LEDGER"
    assert entry["ledgerType"] == "LEDGER"
    assert entry["ledger"]["version"] == 3
    assert entry["ledger"]["createdMs"] == CREATED_MS
    assert entry["reads"]["/owner"] == 5
    assert entry["reads"]["/ledgers/00/0000/L0007"] == 3


def test_a_judgement_of_an_offloaded_copy_keeps_no_bytes() -> None:
    (payload,) = judged_messages("s", 5, [("1:2:0", facts(offload_record()), DeleteOffloaded(CONTEXT, ()))])
    assert logged_ledgers(payload) == []


@pytest.mark.parametrize(
    ("references", "reads"),
    [
        (Referenced(GUARD), {"/owner": 5}),
        (NOT_REFERENCED, {"/owner": 5}),
        (Unreferenced(()), {}),
        (ReferencesUnknown("no bookie"), {"unknown": "no bookie"}),
    ],
)
def test_an_outcome_names_the_reads_it_comes_from(references: object, reads: dict[str, object]) -> None:
    case = facts(references=references, owner=view(), ledger=None)
    payload = settled(Decision.KEPT, OutcomeReason.ALREADY_GONE, "there is no such ledger", record(), case)
    (entry,) = json.loads(payload)["entries"]
    assert entry["reads"] == {"atMs": case.now_ms, "owner": "broker-1:8080"} | reads
    assert entry["decision"] == "kept"
    assert entry["reason"] == "already-gone"
    assert logged_ledgers(payload) == []


def test_a_rejected_message_has_no_record_and_its_detail_is_cut() -> None:
    payload = settled(Decision.REJECTED, OutcomeReason.MALFORMED, "\ud800" * 10_000, None)
    assert json.loads(payload)["entries"] == [
        {"messageId": "1:2:0", "decision": "rejected", "reason": "malformed", "detail": "\ud800" * 500}
    ]


def test_empty_batch_yields_no_messages() -> None:
    assert settled_messages("s", 5, []) == []
    assert judged_messages("s", 5, []) == []


def test_a_big_batch_becomes_several_messages_of_bounded_size() -> None:
    outcomes = [
        RecordOutcome(Decision.KEPT, OutcomeReason.IN_USE, "d" * 400, f"1:{number}:0", record())
        for number in range(3_000)
    ]
    payloads = settled_messages("s", 5, outcomes)
    assert len(payloads) > 1
    assert all(len(payload) < MAX_MESSAGE_BYTES + 1_000 for payload in payloads)
    ids = [entry["messageId"] for payload in payloads for entry in json.loads(payload)["entries"]]
    assert ids == [outcome.message_id for outcome in outcomes]


def test_a_note_is_a_message_of_its_own_kind() -> None:
    payload = note_message("s", 5, "undeleted", {"ledgerId": 7})
    assert json.loads(payload) == {"step": "undeleted", "sidecar": "s", "atMs": 5, "entries": [{"ledgerId": 7}]}
    assert logged_ledgers(payload) == []


def forged(**changes: object) -> bytes:
    entry = {
        "ledgerId": 7,
        "ledger": {"path": "/ledgers/00/0000/L0007", "metadata": base64.b64encode(b"raw").decode()} | changes,
    }
    if "ledgerId" in changes:
        entry["ledgerId"] = changes["ledgerId"]
    return json.dumps({"step": "judged", "sidecar": "s", "atMs": 5, "entries": [entry]}).encode()


def test_the_forger_starts_from_something_that_is_read() -> None:
    assert logged_ledgers(forged()) == [LoggedLedger(LedgerId(7), b"raw")]


@pytest.mark.parametrize(
    "payload",
    [
        forged(ledgerId="7"),
        forged(ledgerId=-1),
        forged(ledgerId=True),
        forged(ledgerId=2**63),
        forged(metadata="no base 64"),
        forged(metadata=None),
        b"",
        b"{}",
        b"[]",
        b"7",
        b"\xff",
        b"[" * 100_000,
        b'{"step":"judged","entries":7}',
        b'{"step":"judged","entries":[7],"atMs":1}',
        b'{"step":"judged","entries":["ledger"],"atMs":1}',
        b'{"step":"judged","entries":[{"ledger":7,"ledgerId":7}],"atMs":1}',
    ],
    ids=lambda payload: f"{len(payload)} {payload[-40:]!r}",
)
def test_invalid_outcome_payload_is_undecodable(payload: bytes) -> None:
    with pytest.raises(UndecodableError):
        logged_ledgers(payload)


@given(st.binary(max_size=100))
def test_random_bytes_are_undecodable(payload: bytes) -> None:
    with pytest.raises(UndecodableError):
        logged_ledgers(payload)


def test_an_outcome_message_to_the_byte() -> None:
    """Others read the topic too, and its form is fixed."""
    assert settled(Decision.KEPT, OutcomeReason.IN_USE, "why", record()) == (
        b'{"step":"settled","sidecar":"s","atMs":5,"entries":[{"ledgerId":7,'
        b'"topicName":"persistent://public/default/orders","ledgerComponent":"MANAGED_LEDGER","ledgerType":"LEDGER",'
        b'"messageId":"1:2:0","decision":"kept","reason":"ledger-still-in-use","detail":"why"}]}'
    )


def test_a_message_is_filled_to_its_last_byte() -> None:
    """A message's limit is counted over its entries and the commas between them."""
    empty = len(json.dumps({"x": ""}, separators=(",", ":")))
    half = MAX_MESSAGE_BYTES // 2 - empty

    def entries_of(*sizes: int) -> list[int]:
        entries: list[dict[str, object]] = [{"x": "d" * (half + more)} for more in sizes]
        return [len(json.loads(payload)["entries"]) for payload in _messages("step", "s", 5, iter(entries))]

    assert entries_of(0, -1) == [2]
    assert entries_of(0, 0) == [1, 1]
    assert entries_of(0, 0, -1) == [1, 2]
    assert entries_of(0, -1, 0) == [2, 1]
    assert entries_of(half + 100, 0, -1) == [1, 2]
    assert entries_of() == []


def test_a_processed_record_names_the_version_it_was_marked_at() -> None:
    for version in (0, None):
        payload = settled(Decision.KEPT, OutcomeReason.IN_USE, "why", record(marked_version=version))
        assert json.loads(payload)["entries"][0].get("markedVersion") == version


def test_why_a_forged_message_is_not_believed() -> None:
    with pytest.raises(UndecodableError, match=r"^an outcome message cannot be read: TypeError$") as refusal:
        logged_ledgers(forged(ledgerId="7"))
    assert str(refusal.value.__cause__) == "a kept ledger has an id"
