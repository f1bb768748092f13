"""Rows of verification: one for each stored message, of any topic.

The same types serve a topic that is read as it comes and the tables of an extract, so that both lead to the same
findings.

"""

from enum import Enum, IntEnum
from typing import NamedTuple

from pulsar_sidecar.model.ids import EntryId, LedgerId

WHOLE_BATCH = -1
"""Batch index of a row for a whole batch, because its messages' own sequence ids are unknown."""
NOT_CHUNKED = -1
"""Chunk number of a message that is not chunked."""


class MessageKind(IntEnum):
    """Kind of a row; the numbers are those in an extract. A marker of a transaction is a marker."""

    MESSAGE = 0
    MARKER = 1
    """Brokers write it, without a sequence of its own: never judged."""
    TRANSACTIONAL = 2
    """Includes messages of aborted transactions, whose entries are stored all the same."""
    REPLICATED = 3
    """Message of another cluster, with the name and the sequence ids of its producer there."""


class PayloadState(IntEnum):
    """Readability of the payload; the numbers are those in an extract."""

    READ = 0
    ENCRYPTED = 1
    """Only its metadata is readable; the same message encrypted again has other bytes."""
    UNDECODABLE = 2
    """Damaged, or of a compression that this version does not know."""
    INCOMPLETE = 3
    """Last chunk of a message whose other chunks were not seen in order."""


class MessageRow(NamedTuple):
    """Row of a message, of a chunk of a message, or of a batch whose messages' ids are unknown.

    It is a tuple, because there are many millions.

    Attributes:
        sequence_id: id as in Java, 64 bits with a sign; of a whole batch, the lowest id.
        batch_index: index in the batch; 0 without a batch; `WHOLE_BATCH`.
        batch_size: messages in the batch; 1 without a batch.
        chunk_id: number of the chunk; `NOT_CHUNKED` for a message that is not chunked.
        chunks: number of chunks; 1 for a message that is not chunked.
        payload_hash: hash of the message's own payload, uncompressed; of a last chunk, of all chunks as stored; 0
            unless ``payload_state`` is READ.
        replicated_from: cluster in which it was published; None for this one.
    """

    producer: str
    sequence_id: int
    ledger_id: LedgerId
    entry_id: EntryId
    batch_index: int
    batch_size: int
    chunk_id: int
    chunks: int
    publish_time_ms: int
    payload_hash: int
    kind: MessageKind
    payload_state: PayloadState
    replicated_from: str | None

    @property
    def is_compared(self) -> bool:
        """True if brokers would compare its id: markers have none, and a chunked message counts once, by its end."""
        return self.kind is not MessageKind.MARKER and self.chunk_id in (NOT_CHUNKED, self.chunks - 1)


class FindingKind(Enum):
    """Kind of a finding, by the message's id and those of its producer's earlier messages in the same topic."""

    DUPLICATE = "duplicate"
    """The topic holds the same sequence id again with the same payload."""
    REUSED = "reused"
    """The topic holds the same sequence id again with another payload."""
    REPEATED = "repeated"
    """The topic holds the same sequence id again, and one of the payloads could not be read."""
    GOING_BACK = "going-back"
    """The id is lower than an earlier one, and was not stored before."""
    EPOCH = "epoch"
    """The producer began again at a lower id and continued from there; in addition to the message's own finding."""
