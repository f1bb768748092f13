"""Names of one offloaded copy, and the metadata that its objects must carry before the sidecar deletes them.

Names alone prove little: buckets are shared between clusters, records may be forged, and a shadow topic's list holds
the offload contexts of its source. Invariant: an object passes only if its own metadata says that Pulsar's offloader
wrote it for the record's managed ledger in this cluster.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from pulsar_sidecar.model.errors import InvalidInputError, PermanentError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.model.names import ManagedLedgerName

FORMAT_VERSION_KEY = "s3managedledgeroffloaderformatversion"
FORMAT_VERSION = "1"
_ROLE_KEY = "role"
_HALF_RANGE = range(-(2**63), 2**63)
_HALF_MASK = 2**64 - 1


class ObjectRole(Enum):
    """What one object of a copy holds; the value is the ``role`` in its user metadata."""

    DATA = "data"
    INDEX = "index"


@dataclass(frozen=True, slots=True)
class OffloadedCopy:
    """One offload attempt of one ledger."""

    ledger_id: LedgerId
    attempt: UUID
    managed_ledger: ManagedLedgerName

    def key(self, role: ObjectRole) -> str:
        """The object's name (``DataBlockUtils.dataBlockOffloadKey``, ``indexBlockOffloadKey``)."""
        data_key = f"{self.attempt}-ledger-{self.ledger_id}"
        return data_key if role is ObjectRole.DATA else f"{data_key}-index"

    @property
    def directory_name(self) -> str:
        """The MapFile's own directory (``FileSystemManagedLedgerOffloader.getDataFilePath``)."""
        return f"{self.ledger_id}-{self.attempt}"


def copy_of(ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName) -> OffloadedCopy:
    """The copy that a context names.

    Raises:
        InvalidInputError: an id is out of range.
        PermanentError: streaming offload wrote the context, whose objects may hold entries of other ledgers too; or
            the context names no attempt.
    """
    if context.segments:
        raise PermanentError(
            f"ledger {ledger_id} was offloaded in streaming segments, which may hold other ledgers as well; "
            "delete them by hand when no ledger in them is wanted any more"
        )
    halves = (context.uid_msb, context.uid_lsb)
    if not 0 <= ledger_id <= MAX_LEDGER_ID or any(half not in _HALF_RANGE for half in halves):
        raise InvalidInputError(f"ledger {ledger_id} or a half of its offload UUID is out of range")
    if halves == (0, 0):
        raise PermanentError(f"the offload context of ledger {ledger_id} names no attempt, so nothing can be located")
    return OffloadedCopy(ledger_id, java_uuid(*halves), managed_ledger)


def java_uuid(most_significant: int, least_significant: int) -> UUID:
    """``new java.util.UUID(long, long)`` of two signed 64-bit halves."""
    return UUID(int=(most_significant & _HALF_MASK) << 64 | (least_significant & _HALF_MASK))


def check_identity(copy: OffloadedCopy, role: ObjectRole, attributes: Mapping[str, str], cluster_name: str) -> None:
    """Compare an object's user metadata with the record.

    4.0.8 writes all of it. The role came late, so it may be missing but not differ. An object of an older offloader
    that names no managed ledger or no cluster cannot be attributed, so it stays.

    Raises:
        PermanentError: the object belongs to another owner or names none; the message names what differs.
    """
    found = {name.lower(): value for name, value in attributes.items()}
    expected = {
        FORMAT_VERSION_KEY: FORMAT_VERSION,
        _ROLE_KEY: role.value,
        "managedledgername": copy.managed_ledger,
        "pulsarclustername": cluster_name,
    }
    for name, value in expected.items():
        present = found.get(name)
        if present == value or (present is None and name == _ROLE_KEY):
            continue
        if present is None:
            raise PermanentError(
                f"{copy.key(role)} does not name its owner: its {name} is missing, expected {value!r}; delete it "
                "by hand if it is not needed any more"
            )
        raise PermanentError(
            f"{copy.key(role)} is not the copy that the record names: its {name} is {present[:200]!r}, expected "
            f"{value!r}"
        )
