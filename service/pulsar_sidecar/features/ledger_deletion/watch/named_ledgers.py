"""Ledgers that one node names, and their packed form: three million nodes must fit into a sidecar's memory.

Ids take 8 bytes each, offload attempts 32; drivers and buckets are in one table, since they are few.
"""

import struct
from array import array
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.ownership.places import Place, locate
from pulsar_sidecar.ownership.references import cursor_references, managed_ledger_references, schema_references
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE

_SCHEMA_SLASHES = 2
_ATTEMPT = struct.Struct("<qqq")
_COPY = struct.Struct("<qqqq")
"""Ledger, halves of the attempt's UUID, and index into the table with a bit for an attempt that succeeded."""
_COUNT = struct.Struct("<I")
"""Prefix of a packed form with copies: their number, and a bit for a shadow's."""


@dataclass(frozen=True, slots=True)
class NamedLedgers:
    """Ledgers that one node names.

    Attributes:
        ids: ledgers of which BookKeeper's copy is referenced.
        replaced: ledgers whose copy in tiered storage has replaced BookKeeper's copy.
        copies: offload attempts by ledger, successful or not; streaming ones, whose objects may contain other ledgers
            as well, are left out.
        of_shadow: True for a shadow topic's node, whose ledgers belong to the source.
    """

    ids: frozenset[LedgerId] = frozenset()
    replaced: frozenset[LedgerId] = frozenset()
    copies: Mapping[LedgerId, OffloadContext] = field(default_factory=dict)
    of_shadow: bool = False


def named_ledgers(path: str, data: bytes) -> NamedLedgers:
    """Return the ledgers that a node below ``/managed-ledgers`` or ``/schemas`` names.

    Raises:
        UndecodableError: not all of them could be decoded.
    """
    located = locate(path)
    match located.place:
        case Place.MANAGED_LEDGER:
            return _of_managed_ledger(data)
        case Place.CURSOR:
            return _of_cursor_node(data)
        case Place.SCHEMA:
            # Nodes above schemas have no data; a schema without data was lost.
            is_above = not data and located.owner.count("/") < _SCHEMA_SLASHES
            return NamedLedgers() if is_above else NamedLedgers(schema_references(data))
        case Place.EITHER:
            return _of_either(path, data)
        case Place.ODD:
            if data:
                raise UndecodableError(f"this version knows nothing that Pulsar keeps at {path}")
            return NamedLedgers()


def _of_either(path: str, data: bytes) -> NamedLedgers:
    """Return the ledgers of a path that fits a managed ledger and a cursor: all, if the value could be both."""
    read: list[NamedLedgers] = []
    for place in (_of_managed_ledger, _of_cursor_node):
        with suppress(UndecodableError):
            read.append(place(data))
    if not read:
        raise UndecodableError(f"{path} is neither a managed ledger nor a cursor that this version can read")
    return NamedLedgers(
        frozenset().union(*(each.ids for each in read)),
        frozenset().union(*(each.replaced for each in read)),
        {ledger_id: context for each in read for ledger_id, context in each.copies.items()},
        any(each.of_shadow for each in read),
    )


def _of_cursor_node(data: bytes) -> NamedLedgers:
    cursor = cursor_references(data)
    # While the topic is loaded a node's compacted ledger may be outdated; such a ledger stays until an audit.
    named = (*cursor.buckets.values(), cursor.cursor_ledger, cursor.compacted_ledger)
    return NamedLedgers(frozenset(ledger_id for ledger_id in named if ledger_id is not None))


def _of_managed_ledger(data: bytes) -> NamedLedgers:
    references = managed_ledger_references(data)
    kept = frozenset(ledger_id for ledger_id, entry in references.ledgers.items() if entry.in_bookkeeper)
    copies = {
        ledger_id: entry.offload
        for ledger_id, entry in references.ledgers.items()
        if entry.offload is not None and not entry.offload.segments
    }
    replaced = frozenset(references.ledgers.keys() - kept)
    return NamedLedgers(kept, replaced, copies, SHADOW_SOURCE in references.properties)


class PackedNodes:
    """Packer of nodes' ledgers; only the packer itself can unpack its packed forms.

    The packed form is the ids. One byte precedes a shadow's, four precede ids that copies follow, so the length shows
    which.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
        self._contexts: list[OffloadContext] = []

    def pack(self, named: NamedLedgers) -> bytes:
        """Return the packed form, empty without ledgers; replaced ledgers are left out."""
        ids = array("q", named.ids).tobytes()
        if named.copies:
            copies = b"".join(self._copy(ledger_id, context) for ledger_id, context in sorted(named.copies.items()))
            return _COUNT.pack(len(named.copies) << 1 | named.of_shadow) + ids + copies
        return b"s" + ids if named.of_shadow and ids else ids

    def unpack(self, data: bytes) -> NamedLedgers:
        ids = array("q")
        ids.frombytes(packed_ids(data))
        return NamedLedgers(frozenset(map(LedgerId, ids)), copies=self._copies(data), of_shadow=_is_shadow(data))

    def _copy(self, ledger_id: LedgerId, context: OffloadContext) -> bytes:
        place = context.place
        if place not in self._places:
            self._places[place] = len(self._contexts)
            self._contexts.append(OffloadContext(0, 0, context.driver_name, context.driver_metadata))
        number = self._places[place] << 1 | context.complete
        return _COPY.pack(ledger_id, context.uid_msb, context.uid_lsb, number)

    def _copies(self, data: bytes) -> Mapping[LedgerId, OffloadContext]:
        packed = data[len(data) - _COPY.size * _count_of_copies(data) :]
        found: dict[LedgerId, OffloadContext] = {}
        for ledger_id, uid_msb, uid_lsb, number in _COPY.iter_unpack(packed):
            place = self._contexts[number >> 1]
            found[LedgerId(ledger_id)] = OffloadContext(
                uid_msb, uid_lsb, place.driver_name, place.driver_metadata, complete=bool(number & 1)
            )
        return found


def packed_ids(data: bytes) -> bytes:
    """Return the ids alone, as 8 bytes each."""
    return data[len(data) % 8 : len(data) - _COPY.size * _count_of_copies(data)]


def packed_attempt(ledger_id: LedgerId, context: OffloadContext) -> bytes:
    """Return the bytes of an offload attempt in packed forms, independent of where its copy is."""
    return _ATTEMPT.pack(ledger_id, context.uid_msb, context.uid_lsb)


def has_copies(data: bytes) -> bool:
    """Return True if a packed form has copies."""
    return len(data) % 8 == _COUNT.size


def _count_of_copies(data: bytes) -> int:
    return int(_COUNT.unpack_from(data)[0]) >> 1 if has_copies(data) else 0


def _is_shadow(data: bytes) -> bool:
    return bool(_COUNT.unpack_from(data)[0] & 1) if has_copies(data) else len(data) % 8 == 1
