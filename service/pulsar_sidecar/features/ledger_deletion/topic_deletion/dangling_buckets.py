"""Restoring of missing bucket ledgers of delayed indexes: without them brokers cannot delete the topic.

A broker deletes a bucket's ledger first and the cursor's pointer to it second. If it dies in between, each later
deletion of the subscription or the topic ends with BookKeeper's "No such ledger exists on Metadata Server", which
brokers of 4.0.8 and 4.2.4 do not treat as success (``BookkeeperBucketSnapshotStorage.deleteLedger``). Brokers would
overwrite a removed pointer with their own copy, so the sidecar puts the ledger back, closed and without entries.

Invariant: only ids are put back that the marked cursors point to and that the metadata store reported missing, and a
record of each is sent before the next request to a broker, so that one that a broker leaves behind is deleted like any
other.
"""

from collections.abc import Iterable, Iterator, Mapping

from pulsar_sidecar.features.ledger_deletion.steps import Step
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import Operation
from pulsar_sidecar.features.ledger_deletion.topic_deletion.recorder import (
    LedgerDetails,
    Recorder,
    TopicReferences,
    records_of,
)
from pulsar_sidecar.model.errors import AlreadyExistsError, TemporaryError
from pulsar_sidecar.model.ids import BookieId, EntryId, LedgerId
from pulsar_sidecar.model.ledgers import DigestType, LedgerMetadata, LedgerSegment, LedgerState
from pulsar_sidecar.model.metadata import Nodes
from pulsar_sidecar.model.names import decode_cursor
from pulsar_sidecar.ownership.claims import BucketClaim, bucket_custom_metadata
from pulsar_sidecar.ownership.ledger_metadata import encode_ledger_metadata, ledger_length
from pulsar_sidecar.ownership.paths import ledger_path
from pulsar_sidecar.ownership.registrations import BookieState, bookie_states


def restore_buckets(recorder: Recorder, operation: Operation, nodes: Nodes) -> Operation:
    """Put back missing ledgers of the marked cursors' buckets; return the operation with their new records.

    ``nodes`` were read right before. Each ledger is recorded again, also by a sidecar that finds one put back and not
    yet recorded: the first record of its id may have ended, since the ledger was gone. After any error no broker may be
    called.
    """
    references = recorder.references(operation, nodes, {})
    claims = dict(claim for each in references for claim in _claims(each))
    gone, empty = _missing_and_empty(recorder, claims)
    known = set(operation.recorded)
    new = {*gone, *(each for each in empty if _key(each) not in known)}
    if not new:
        return operation
    recorder.require_identity(nodes)
    _create(recorder, {each: claims[each] for each in gone})
    details: dict[LedgerId, LedgerDetails] = {}
    recorder.read_details(new, details)
    records = [each for topic in references for each in records_of(topic) if each.ledger_id in new]
    recorder.send(recorder.signed(operation, records, nodes, details), operation.trace)
    return operation.recording(tuple(sorted({_key(each) for each in new} - known)))


def _missing_and_empty(recorder: Recorder, ledger_ids: Iterable[LedgerId]) -> tuple[list[LedgerId], list[LedgerId]]:
    # A broker points only to a bucket that is written, so one without entries was put back.
    ordered = sorted(ledger_ids)
    paths = [ledger_path(each, recorder.root) for each in ordered]
    found = dict(zip(ordered, recorder.store.read_many(paths) if paths else (), strict=True))
    gone = [each for each, node in found.items() if node is None]
    return gone, [each for each, node in found.items() if node is not None and ledger_length(node.data) == 0]


def _claims(topic: TopicReferences) -> Iterator[tuple[LedgerId, BucketClaim]]:
    for name, cursor in topic.cursors.items():
        for bucket_key, ledger_id in cursor.buckets.items():
            yield ledger_id, BucketClaim(topic.topic, decode_cursor(name) or name, bucket_key)


def _key(ledger_id: LedgerId) -> str:
    """Return the key of the record of a ledger that was put back; `record_key` marks other records."""
    return f"{ledger_id}b"


def _create(recorder: Recorder, gone: Mapping[LedgerId, BucketClaim]) -> None:
    bookies = bookie_states(recorder.store, recorder.root)
    writable = next((bookie for bookie, state in bookies.items() if state is BookieState.WRITABLE), None)
    for ledger_id, claim in gone.items():
        if writable is None:
            raise TemporaryError(f"ledger {ledger_id} of a delayed index cannot be restored: no bookie is writable")
        data = encode_ledger_metadata(_without_entries(claim, writable))
        try:
            with recorder.steps.taking(Step.BUCKET_PUT_BACK):
                recorder.store.create(ledger_path(ledger_id, recorder.root), data)
        except AlreadyExistsError:
            continue  # another sidecar was faster


def _without_entries(claim: BucketClaim, bookie: BookieId) -> LedgerMetadata:
    return LedgerMetadata(
        state=LedgerState.CLOSED,
        ensemble_size=1,
        write_quorum_size=1,
        ack_quorum_size=1,
        length_bytes=0,
        last_entry_id=EntryId(-1),
        segments=(LedgerSegment(EntryId(0), (bookie,)),),
        custom_metadata=bucket_custom_metadata(claim),
        digest_type=DigestType.CRC32C,
    )
