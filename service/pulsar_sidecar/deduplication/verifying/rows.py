"""What verification looks at: one row for each message as it is stored, of any topic.

The same nouns serve a topic that is read as it comes and the tables of an extract (`extract_schema`), so that both
come to the same findings.
"""

import hashlib
from enum import Enum, IntEnum
from typing import NamedTuple

from pulsar_sidecar.model.ids import EntryId, LedgerId

WHOLE_BATCH = -1
"""As a batch index: the row stands for all messages of the batch, because their own sequence ids are not known."""
NOT_CHUNKED = -1
"""As a chunk's number."""
_HASH_BYTES = 8


class MessageKind(IntEnum):
    """What a row is; the numbers are those in an extract. A marker of a transaction is a marker."""

    MESSAGE = 0
    MARKER = 1
    """Written by brokers, without a sequence of its own: never judged."""
    TRANSACTIONAL = 2
    """Also where the transaction was aborted: the entry is stored all the same."""
    REPLICATED = 3
    """From another cluster, with the name and the sequence ids of its producer there."""


class PayloadState(IntEnum):
    """Whether the payload could be looked into; the numbers are those in an extract."""

    READ = 0
    ENCRYPTED = 1
    """Only its metadata can be read; the same message encrypted again has other bytes."""
    UNDECODABLE = 2
    """Damaged, or of a compression that this version does not know."""
    INCOMPLETE = 3
    """The last chunk of a message whose other chunks were not seen in order."""


class MessageRow(NamedTuple):
    """One message, one chunk of a message, or a batch whose messages' ids are not known.

    A tuple, because there are many millions.

    Attributes:
        sequence_id: as Java has it: 64 bits with a sign. Of a whole batch the lowest of its ids.
        batch_index: 0 for a message that is in no batch; `WHOLE_BATCH`.
        batch_size: 1 for a message that is in no batch.
        chunk_id: `NOT_CHUNKED` for a message that is not chunked.
        chunks: 1 for a message that is not chunked.
        payload_hash: of the message's own payload, uncompressed; of a last chunk, of all chunks as they are stored; 0
            unless ``payload_state`` is READ.
        replicated_from: the cluster that it was published in; None for this one.
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
    def is_judged(self) -> bool:
        """Whether brokers would compare its id: markers have none, and a chunked message counts once, by its end."""
        return self.kind is not MessageKind.MARKER and self.chunk_id in (NOT_CHUNKED, self.chunks - 1)


def payload_hash(payload: bytes) -> int:
    """What distinguishes payloads: 64 bits with a sign."""
    return int.from_bytes(hashlib.blake2b(payload, digest_size=_HASH_BYTES).digest(), "big", signed=True)


class FindingKind(Enum):
    """What is wrong with a message, by its id and those of its producer's earlier messages in the same topic."""

    DUPLICATE = "duplicate"
    """The same sequence id is stored again with the same payload."""
    REUSED = "reused"
    """The same sequence id is stored again with another payload."""
    REPEATED = "repeated"
    """The same sequence id is stored again, and one of the payloads could not be read."""
    GOING_BACK = "going-back"
    """The id is lower than an earlier one, and was not stored before."""
    EPOCH = "epoch"
    """The producer began again at a lower id and went on from there; beside what the message itself is."""
