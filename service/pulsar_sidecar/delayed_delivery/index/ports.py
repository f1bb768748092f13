"""What the delayed index needs from outside.

Every method raises `TemporaryError` when the other side could not be asked, and `UndecodableError` for what was read
and not understood.
"""

from collections.abc import Sequence
from typing import Protocol

from pulsar_sidecar.delayed_delivery.index.bucket_key import BucketKey
from pulsar_sidecar.delayed_delivery.index.snapshot import DelayedIndexes, SnapshotMetadata
from pulsar_sidecar.model.ids import LedgerId


class BucketSnapshotStorage(Protocol):
    """Where snapshots are kept: PIP-195's interface of the same name, its seven methods, waiting for each answer.

    A bucket's id is its ledger's.
    """

    def start(self) -> None:
        """Get ready for the other calls."""

    def create_bucket_snapshot(
        self,
        metadata: SnapshotMetadata,
        segments: Sequence[DelayedIndexes],
        bucket_key: BucketKey,
        topic_name: str,
        cursor_name: str,
    ) -> LedgerId:
        """Write it whole; key, topic and cursor go into the ledger's custom metadata. Returns when it is durable.

        Raises:
            TemporaryError: nothing was kept.
            OutcomeUnknownError: a ledger may have been left; the error names it.
        """

    def get_bucket_snapshot_metadata(self, bucket_id: LedgerId) -> SnapshotMetadata:
        """Entry 0. Raises `NotFoundError` when there is no such bucket."""

    def get_bucket_snapshot_segment(
        self, bucket_id: LedgerId, first_segment_entry_id: int, last_segment_entry_id: int
    ) -> Sequence[DelayedIndexes]:
        """The segments of these entries, 1 for the first one, both included. Raises `NotFoundError` likewise."""

    def get_bucket_snapshot_length(self, bucket_id: LedgerId) -> int:
        """Bytes of all entries' payloads. Raises `NotFoundError` likewise."""

    def delete_bucket_snapshot(self, bucket_id: LedgerId) -> None:
        """Take it away; one that is gone already is no error."""

    def close(self) -> None:
        """Let go of what is kept open; idempotent."""
