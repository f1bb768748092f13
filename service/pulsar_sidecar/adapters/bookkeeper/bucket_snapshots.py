"""Snapshots of the delayed index in ledgers of their own, as brokers keep them (``BookkeeperBucketSnapshotStorage``).

Invariants: the sidecar deletes no ledger but a bucket's, and reads a bucket only once its ledger is closed: a broker
that opens an open one closes it first, which fences its writer.

`BookieBucketEntries` reads the entries of many ledgers at a time.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.bookkeeper.ledger_writer import LedgerWriter, Replication
from pulsar_sidecar.features.delayed_index.ports import BucketOwner, EntryPayload
from pulsar_sidecar.features.delayed_index.snapshot import (
    DelayedIndexes,
    SnapshotMetadata,
    decode_metadata,
    decode_segment,
    encode_metadata,
    encode_segment,
)
from pulsar_sidecar.model.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    SidecarError,
    TemporaryError,
)
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerMetadata, LedgerState
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.metadata import DeletionResult, MetadataStore
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.ownership.claims import BucketClaim, bucket_custom_metadata, read_claim
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT, ledger_path

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BookieBucketSnapshots:
    """`delayed_index.ports.BucketSnapshotStorage` on the cluster's bookies; safe for use by several threads.

    It reads the replication for each new bucket: the brokers' ``managedLedgerDefault*`` settings.
    """

    _store: MetadataStore
    _entries: BookieEntries
    _writer: LedgerWriter
    _replication: Callable[[], Replication]
    _root: str = DEFAULT_LEDGERS_ROOT

    def create_bucket_snapshot(
        self, metadata: SnapshotMetadata, segments: Sequence[DelayedIndexes], owner: BucketOwner
    ) -> LedgerId:
        claim = BucketClaim(parse_topic_name(owner.topic_name), owner.cursor_name, str(owner.bucket_key))
        payloads = [encode_metadata(metadata), *map(encode_segment, segments)]
        return self._writer.write(payloads, bucket_custom_metadata(claim), self._replication())

    def get_bucket_snapshot_metadata(self, bucket_id: LedgerId) -> SnapshotMetadata:
        [metadata] = self._read(bucket_id, range(1), decode_metadata)
        return metadata

    def get_bucket_snapshot_segment(
        self, bucket_id: LedgerId, first_segment_entry_id: int, last_segment_entry_id: int
    ) -> Sequence[DelayedIndexes]:
        return self._read(bucket_id, range(first_segment_entry_id, last_segment_entry_id + 1), decode_segment)

    def get_bucket_snapshot_length(self, bucket_id: LedgerId) -> int:
        return self._closed(bucket_id).length_bytes

    def delete_bucket_snapshot(self, bucket_id: LedgerId) -> None:
        """Delete a bucket's ledger as BookKeeper does: its node; bookies collect the entries.

        Raises:
            ConflictError: the ledger holds no bucket, or changed at the same moment; it was not deleted.
            OutcomeUnknownError: the response was lost; read again.
        """
        node = self._store.read(ledger_path(bucket_id, self._root))
        if node is None:
            return
        claim = read_claim(decode_ledger_metadata(node.data).custom_metadata)
        if not isinstance(claim, BucketClaim):
            raise ConflictError(f"ledger {bucket_id} holds no bucket of a delayed index; it is not deleted")
        result = self._store.delete(node.path, node.version, node.modified_order)
        if result is DeletionResult.CONFLICT:
            raise ConflictError(f"the metadata of ledger {bucket_id} changed at the same moment; try again")
        if result is DeletionResult.UNKNOWN:
            raise OutcomeUnknownError(f"the answer to deleting ledger {bucket_id} was lost; check whether it is gone")

    def _closed(self, bucket_id: LedgerId) -> LedgerMetadata:
        node = self._store.read(ledger_path(bucket_id, self._root))
        if node is None:
            raise NotFoundError(f"there is no ledger {bucket_id}, so the bucket is gone")
        metadata = decode_ledger_metadata(node.data)
        if metadata.state is not LedgerState.CLOSED:
            raise TemporaryError(
                f"ledger {bucket_id} of a bucket is not closed: its writer is still writing, or died; try again later"
            )
        return metadata

    def _read(self, bucket_id: LedgerId, wanted: range, decode: Callable[[bytes], T]) -> list[T]:
        metadata = self._closed(bucket_id)
        if not wanted or wanted[0] < 0 or wanted[-1] > metadata.last_entry_id:
            raise InvalidInputError(
                f"bucket {bucket_id} has entries 0 to {metadata.last_entry_id}, not {wanted.start} to {wanted.stop - 1}"
            )
        answer = self._entries.read_many(bucket_id, metadata, map(EntryId, wanted), bytes)
        for entry_id in (EntryId(each) for each in wanted if each not in answer.found):
            reason = answer.unreadable.get(entry_id, "every bookie reports that it has no such entry")
            raise TemporaryError(f"no bookie returned entry {bucket_id}:{entry_id} of a bucket ({reason}); try again")
        return [decode(answer.found[EntryId(entry_id)]) for entry_id in wanted]


_THREADS: Final = 4
"""Number of the pool's connections to a bookie: one entry of each of a thousand ledgers is a thousand waits."""


class BookieBucketEntries:
    """`BucketEntries` of the delayed index; safe for use by several threads."""

    def __init__(self, entries: BookieEntries) -> None:
        self._entries = entries
        self._threads = ThreadPoolExecutor(_THREADS, "bucket-entries")

    def read(
        self, ledgers: Mapping[LedgerId, LedgerMetadata], positions: Collection[Position]
    ) -> Mapping[Position, EntryPayload]:
        wanted: dict[LedgerId, list[EntryId]] = defaultdict(list)
        for ledger_id, entry_id in positions:
            wanted[ledger_id].append(entry_id)
        answers: dict[Position, EntryPayload] = {}
        for found in self._threads.map(lambda one: self._read_ledger(one, ledgers[one], wanted[one]), wanted):
            answers |= found
        return answers

    def close(self) -> None:
        """End the threads; idempotent."""
        self._threads.shutdown(cancel_futures=True)

    def _read_ledger(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, wanted: Sequence[EntryId]
    ) -> dict[Position, EntryPayload]:
        answers: dict[Position, EntryPayload] = {Position(ledger_id, entry_id): Absent() for entry_id in wanted}
        try:
            read = self._entries.read_many(ledger_id, metadata, wanted, bytes)
        except SidecarError as error:
            return dict.fromkeys(answers, Unreadable(str(error)))
        answers.update({Position(ledger_id, entry_id): payload for entry_id, payload in read.found.items()})
        answers.update((Position(ledger_id, id_), Unreadable(reason)) for id_, reason in read.unreadable.items())
        return answers
