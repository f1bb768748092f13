"""Whether a claimed owner references a ledger, from the owner's nodes as they were read.

One instance serves one batch: every node is decoded once. Nothing here concludes "unreferenced" from a node that was
not read or not understood.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar, assert_never

from pulsar_sidecar.ledger_deletion.second_phase.facts import Referenced, References, ReferencesUnknown, Unreferenced
from pulsar_sidecar.ledger_ownership.claims import (
    BucketClaim,
    Claim,
    CompactedClaim,
    CursorClaim,
    DataClaim,
    SchemaClaim,
)
from pulsar_sidecar.ledger_ownership.compaction import CompactedLedgers
from pulsar_sidecar.ledger_ownership.paths import cursor_path, managed_ledger_path, schema_path
from pulsar_sidecar.ledger_ownership.references import (
    LedgerReference,
    cursor_references,
    managed_ledger_references,
    schema_references,
)
from pulsar_sidecar.ledger_ownership.shadows import SHADOW_SOURCE
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.model.metadata import Guard, Node
from pulsar_sidecar.model.names import ManagedLedgerName, encode_cursor
from pulsar_sidecar.model.topic_stats import COMPACTION_CURSOR

Decoded = TypeVar("Decoded")


def owner_path(claim: Claim) -> str:
    """The one node that references a ledger of this claim, directly or through its cursor's ledger."""
    match claim:
        case DataClaim(managed_ledger):
            return managed_ledger_path(managed_ledger)
        case CursorClaim(managed_ledger, cursor):
            return cursor_path(managed_ledger, cursor)
        case SchemaClaim(schema_id):
            return schema_path(schema_id)
        case CompactedClaim(topic):
            return cursor_path(topic.managed_ledger_name, COMPACTION_CURSOR)
        case BucketClaim(topic, subscription, _):
            # The properties of the subscription's cursor point at the buckets of its delayed index.
            return cursor_path(topic.managed_ledger_name, encode_cursor(subscription))
        case never:
            assert_never(never)


@dataclass(slots=True)
class OwnerNodes:
    """The owners' nodes of one batch, and what they reference."""

    nodes: Mapping[str, Node | None]
    compacted_ledgers: CompactedLedgers
    _decoded: dict[tuple[str, str], object] = field(default_factory=dict)

    def references(self, claim: Claim, ledger_id: LedgerId) -> References:
        """Whether the claimed owner references the ledger."""
        path = owner_path(claim)
        try:
            if isinstance(claim, DataClaim):
                return self._data_references(path, ledger_id)
            return self._verdict(path, self._names(claim, path, ledger_id))
        except TemporaryError as error:
            return ReferencesUnknown(f"{path}: {error}")

    def offload_references(
        self, managed_ledger: ManagedLedgerName, ledger_id: LedgerId, context: OffloadContext
    ) -> References:
        """Whether the managed ledger still counts on this offload attempt's copy."""
        path = managed_ledger_path(managed_ledger)
        try:
            listed = self._decode(path, managed_ledger_references)
        except TemporaryError as error:
            return ReferencesUnknown(f"{path}: {error}")
        if listed is None:
            return Unreferenced()
        if SHADOW_SOURCE in listed.properties:
            # Whatever its list says now, the copies are its source's.
            return self._verdict(path, True)
        entry = listed.ledgers.get(ledger_id)
        offload = entry.offload if entry else None
        same = offload is not None and (offload.uid_msb, offload.uid_lsb) == (context.uid_msb, context.uid_lsb)
        return self._verdict(path, same, other_copy_listed=entry is not None and not same)

    def _data_references(self, path: str, ledger_id: LedgerId) -> References:
        entry = self._listed(path, ledger_id)
        # Once the offloader's copy has replaced it, the list entry no longer means BookKeeper's copy.
        replaced = entry is not None and entry.offload is not None and entry.offload.bookkeeper_deleted
        return self._verdict(path, entry is not None and not replaced, other_copy_listed=replaced)

    def _listed(self, path: str, ledger_id: LedgerId) -> LedgerReference | None:
        listed = self._decode(path, managed_ledger_references)
        return listed.ledgers.get(ledger_id) if listed else None

    def _verdict(self, path: str, referenced: bool, *, other_copy_listed: bool = False) -> References:
        node = self.nodes[path]
        if node is None:
            return Unreferenced()
        if referenced:
            return Referenced(Guard(path, node.version))
        return Unreferenced((Guard(path, node.version),), other_copy_listed)

    def _names(
        self, claim: CursorClaim | SchemaClaim | CompactedClaim | BucketClaim, path: str, ledger_id: LedgerId
    ) -> bool:
        match claim:
            case CursorClaim():
                cursor = self._decode(path, cursor_references)
                return cursor is not None and cursor.cursor_ledger == ledger_id
            case SchemaClaim():
                versions = self._decode(path, schema_references)
                return versions is not None and ledger_id in versions
            case CompactedClaim():
                return ledger_id in (self._decode(path, self._compacted) or frozenset())
            case BucketClaim():
                cursor = self._decode(path, cursor_references)
                return cursor is not None and ledger_id in cursor.buckets.values()
            case never:
                assert_never(never)

    def _compacted(self, data: bytes) -> frozenset[LedgerId]:
        return self.compacted_ledgers.referenced(cursor_references(data))

    def _decode(self, path: str, decoder: Callable[[bytes], Decoded]) -> Decoded | None:
        node = self.nodes[path]
        if node is None:
            return None
        key = (decoder.__name__, path)
        if key not in self._decoded:
            self._decoded[key] = decoder(node.data)
        return self._decoded[key]  # type: ignore[return-value]
