"""BookKeeper's metadata and entries of ledgers, and PIP-186's words for kinds of ledgers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from pulsar_sidecar.model.ids import BookieId, EntryId, LedgerId

_HALF_MASK = 2**64 - 1


class LedgerComponent(Enum):
    """Use of a ledger (PIP-186 ``ledgerComponent``).

    PIP-186 names the first three; the last two are kinds that Pulsar 4.0 writes and the PIP does not cover.
    """

    MANAGED_LEDGER = "MANAGED_LEDGER"
    MANAGED_CURSOR = "MANAGED_CURSOR"
    SCHEMA_STORAGE = "SCHEMA_STORAGE"
    COMPACTED_LEDGER = "COMPACTED_LEDGER"
    DELAYED_INDEX_BUCKET = "DELAYED_INDEX_BUCKET"


class LedgerType(Enum):
    """Storage of a ledger's data (PIP-186 ``ledgerType``)."""

    LEDGER = "LEDGER"
    OFFLOAD_LEDGER = "OFFLOAD_LEDGER"


class LedgerState(Enum):
    """``LedgerMetadataFormat.State`` of BookKeeper, with its wire numbers."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


class DigestType(Enum):
    """``LedgerMetadataFormat.DigestType`` of BookKeeper, the checksum of entries, with its wire numbers."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


@dataclass(frozen=True, slots=True)
class LedgerSegment:
    """The ensemble that holds the entries from ``first_entry_id`` on."""

    first_entry_id: EntryId
    ensemble: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """A decoded ``LedgerMetadataFormat`` (BookKeeper ``LedgerMetadataSerDe``).

    ``length_bytes`` is 0 and ``last_entry_id`` -1 while the ledger is open. ``digest_type`` is None when the metadata
    does not record it (the oldest format). ``password`` is the key of digest type HMAC, never shown.
    """

    state: LedgerState
    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    length_bytes: int
    last_entry_id: EntryId
    segments: tuple[LedgerSegment, ...]
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict)
    digest_type: DigestType | None = DigestType.CRC32C
    password: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class OffloadSegment:
    """Part of a ledger that was offloaded while it grew (``MLDataFormats.OffloadSegment``)."""

    uid_msb: int
    uid_lsb: int
    driver_name: str
    driver_metadata: Mapping[str, str]
    complete: bool = False


@dataclass(frozen=True, slots=True)
class OffloadContext:
    """Place of a ledger's copy in tiered storage (``MLDataFormats.OffloadContext``).

    ``uid_msb`` and ``uid_lsb`` are the signed 64-bit halves of the Java UUID of the offload attempt. ``driver_name``
    is empty when the context names no driver: Pulsar then uses the namespace's present one
    (``OffloadUtils.getOffloadDriverName``). A context with ``segments`` was written by streaming offload: its copies
    are the segments', and its own two halves are 0.
    """

    uid_msb: int
    uid_lsb: int
    driver_name: str
    driver_metadata: Mapping[str, str]
    complete: bool = True
    bookkeeper_deleted: bool = False
    segments: tuple[OffloadSegment, ...] = ()
    offloaded_ms: int = field(default=0, compare=False)

    @property
    def place(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """The driver and its metadata: equal for all copies that are kept in the same place."""
        return self.driver_name, tuple(sorted(self.driver_metadata.items()))

    @property
    def attempt(self) -> UUID:
        """The UUID of the offload attempt, ``new java.util.UUID(long, long)`` of the two halves."""
        return UUID(int=(self.uid_msb & _HALF_MASK) << 64 | (self.uid_lsb & _HALF_MASK))


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """Entry of a ledger as a bookie stores it, its digest verified."""

    ledger_id: LedgerId
    entry_id: EntryId
    payload: bytes


class UnseenCause(Enum):
    """Cause for which a topic's present or former entries were not read from the bookies."""

    OFFLOADED = "offloaded"
    """The entries are in tiered storage, and BookKeeper no longer has a copy."""
    UNREADABLE = "unreadable"
    """A bookie did not respond, the entry is damaged or lost, or the topic was deleted while it was being read."""
    TRIMMED = "trimmed"
    """The topic trimmed the ledger while it was being read."""


@dataclass(frozen=True, slots=True)
class UnseenEntries:
    """Entries of a ledger that could not be read; their content is unknown.

    ``last_entry_id`` is None while the number of entries is unknown.
    """

    ledger_id: LedgerId
    first_entry_id: EntryId
    last_entry_id: EntryId | None
    cause: UnseenCause
    reason: str
