"""Conversion of the outcome topic's lines, as the service writes them, into traces that the model replays."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from pulsar_sidecar.features.ledger_deletion.outcomes import (
    Decision,
    RecordOutcome,
    judged_messages,
    note_message,
    settled_messages,
)
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import (
    Delete,
    DeleteOffloaded,
    OutcomeReason,
    Referenced,
    References,
    Unreferenced,
)
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.metadata import Guard

from tests.model.traces import Event, Line, Trace, as_document, known_traces, trace_of, traces
from tests.unit.ledger_deletion.cases import (
    CONTEXT,
    GUARD,
    LEDGER_ID,
    NOT_REFERENCED,
    facts,
    offload_record,
    record,
    stored,
)

AT_MS = 1


def lines(payloads: Sequence[bytes]) -> list[Line]:
    documents = [json.loads(payload) for payload in payloads]
    return [(document["step"], document["sidecar"], entry) for document in documents for entry in document["entries"]]


def judged(message_id: str = "1:0:0", version: int = 0, sidecar: str = "one") -> list[Line]:
    ledger = replace(stored(), version=NodeVersion(version))
    return lines(judged_messages(sidecar, AT_MS, [(message_id, facts(ledger=ledger), Delete(ledger, (GUARD,)))]))


def processed(
    decision: str,
    reason: str,
    message_id: str = "1:0:0",
    *,
    sidecar: str = "one",
    references: References = NOT_REFERENCED,
    marked: int | None = None,
) -> list[Line]:
    about = record(marked_version=None if marked is None else NodeVersion(marked))
    known = facts(about, references=references)
    return lines(
        settled_messages(
            sidecar, AT_MS, [RecordOutcome(Decision(decision), OutcomeReason(reason), "", message_id, about, known)]
        )
    )


DELETED = processed("deleted", "unreferenced")
JUDGED = Event("Judges", 0, ledger=0, owner=0)


def only_trace(found: Sequence[Line]) -> Trace:
    (trace,) = traces(found).values()
    return trace


def test_a_judgement_and_a_deletion_carry_the_versions_that_were_read() -> None:
    version = stored().version
    assert only_trace([*judged(version=version), *DELETED]) == Trace((JUDGED, replace(JUDGED, what="Deleted")))
    newer = only_trace([*judged(version=version + 5), *DELETED])
    assert [event.ledger for event in newer.events] == [1, 0]


def test_a_node_that_was_not_there_has_no_version() -> None:
    ledger = stored()
    found = lines(judged_messages("one", AT_MS, [("1:0:0", facts(references=Unreferenced()), Delete(ledger, ()))]))
    assert only_trace(found).events[0].owner is None


@pytest.mark.parametrize(
    ("decision", "reason", "what"),
    [
        ("kept", "already-gone", "Gone"),
        ("kept", "metadata-mismatch", "Refused"),
        ("retry", "too-young", "SentAgain"),
        ("dead-letter", "references-unknown", "SentToDeadLetters"),
    ],
)
def test_other_ends_are_distinguished_by_their_reason(decision: str, reason: str, what: str) -> None:
    assert only_trace(processed(decision, reason)).events == (Event(what, 0),)


def test_what_is_in_use_names_the_version_at_which_the_list_was_to_shrink() -> None:
    by = Guard("/owner", NodeVersion(7))
    found = processed("kept", "ledger-still-in-use", references=Referenced(by), marked=5)
    (event,) = only_trace(found).events
    assert (event.what, event.owner, event.marked) == ("InUse", 1, 0)


def test_consumers_are_distinguished_while_their_work_overlaps() -> None:
    overlapping = [
        *judged("1:0:0", sidecar="one"),
        *judged("1:1:0", sidecar="two"),
        *DELETED,
        *processed("kept", "already-gone", "1:1:0", sidecar="two"),
    ]
    assert [event.actor for event in only_trace(overlapping).events] == [0, 1, 0, 1]
    in_turn = [*judged(), *DELETED, *processed("kept", "already-gone", "1:1:0", sidecar="two")]
    assert [event.actor for event in only_trace(in_turn).events] == [0, 0, 0]


def test_a_deletion_by_another_sidecar_than_the_one_that_judged_shows() -> None:
    elsewhere = [*judged(), *processed("deleted", "unreferenced", sidecar="two"), *processed("kept", "already-gone")]
    assert [event.actor for event in only_trace(elsewhere).events] == [0, 1, 0]


def test_a_run_of_retries_counts_once_and_other_runs_twice() -> None:
    retries = [line for number in range(9) for line in processed("retry", "too-young", f"1:{number}:0")]
    assert [event.what for event in only_trace([*retries, *judged()]).events] == ["SentAgain", "Judges"]
    assert len(only_trace(judged() * 5).events) == 2


def test_what_is_not_about_a_ledger_of_bookkeeper_is_no_trace() -> None:
    about = offload_record()
    offloaded = judged_messages("one", AT_MS, [("1:0:0", facts(about), DeleteOffloaded(CONTEXT, ()))])
    malformed = settled_messages(
        "one", AT_MS, [RecordOutcome(Decision.REJECTED, OutcomeReason.MALFORMED, "", "1:0:0", None)]
    )
    ended = [note_message("one", AT_MS, "topic-deletion", {"operationId": "x"})]
    assert traces(lines([*offloaded, *malformed, *ended])) == {}


def test_an_undelete_is_remembered() -> None:
    back = lines([note_message("one", AT_MS, "undeleted", {"ledgerId": LEDGER_ID, "readable": True})])
    assert only_trace([*judged(), *DELETED, *back]).brought_back


def test_a_long_trace_is_cut() -> None:
    many = [
        line
        for number in range(9)
        for line in (*judged(f"1:{number}:0"), *processed("retry", "too-young", f"1:{number}:0"))
    ]
    assert only_trace(many).cut
    assert len(only_trace(many).events) == 7


def test_known_traces_are_kept_as_they_are_and_once() -> None:
    known = known_traces()
    assert len(set(known)) == len(known)
    assert all(trace_of(json.loads(json.dumps(as_document(trace)))) == trace for trace in known)
