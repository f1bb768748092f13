"""Ledgers that exist, minus ledgers that any node names: what is left over is what deletion is about.

Counts, not a diff of nodes: an id that was put into a list and taken out between two readings is in no reading, but
the ledger's own node was seen to be made. Invariants: a ledger counts as referenced as long as one node, as it was last
read, names it; what an unread node may name is never counted as unreferenced by it (`unreadable`), and the copy of a
ledger that tiered storage replaced is marked (`VanishedReference.replaced`).

Ten million ledgers take 35 MB here at most (two sets of ids, which lie close together), and three million nodes that
name them 0.8 GB. A ledger that several nodes name, as a shadow topic's, takes 100 bytes more.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from pulsar_sidecar.ledger_deletion.watch.ports import LedgerIds, WalkedNode
from pulsar_sidecar.ledger_ownership.places import Place, locate
from pulsar_sidecar.ledger_ownership.protections import UnreadableNode, undecodable_node, unreadable_node, upwards
from pulsar_sidecar.ledger_ownership.references import (
    cursor_references,
    managed_ledger_references,
    schema_references,
)
from pulsar_sidecar.ledger_ownership.shadows import SHADOW_SOURCE
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import LedgerId

_AT_ONCE = 1_000_000
_SCHEMA_SLASHES = 2


@dataclass(frozen=True, slots=True)
class NamedLedgers:
    """What one node names.

    Attributes:
        ids: ledgers of which BookKeeper's copy is referenced.
        replaced: ledgers whose copy in tiered storage has replaced BookKeeper's.
        of_shadow: the node is a shadow topic's, so the ledgers are its source's.
    """

    ids: frozenset[LedgerId] = frozenset()
    replaced: frozenset[LedgerId] = frozenset()
    of_shadow: bool = False


@dataclass(frozen=True, slots=True)
class VanishedReference:
    """A ledger whose last reference was in one reading of a node and not in the next.

    Attributes:
        path: the node.
        replaced: the node still names the ledger, for its copy in tiered storage.
    """

    ledger_id: LedgerId
    path: str
    replaced: bool


def named_ledgers(path: str, data: bytes) -> NamedLedgers:
    """The ledgers that a node below ``/managed-ledgers`` or ``/schemas`` names.

    Raises:
        UndecodableError: not all of them could be read.
    """
    located = locate(path)
    match located.place:
        case Place.MANAGED_LEDGER:
            return _of_managed_ledger(data)
        case Place.CURSOR:
            return _of_cursor_node(data)
        case Place.SCHEMA:
            # Nodes above schemas have no data; a schema without data is one that was lost.
            is_above = not data and located.owner.count("/") < _SCHEMA_SLASHES
            return NamedLedgers() if is_above else NamedLedgers(schema_references(data))
        case Place.EITHER:
            return _of_either(path, data)
        case Place.ODD:
            if data:
                raise UndecodableError(f"this version knows nothing that Pulsar keeps at {path}")
            return NamedLedgers()


def _of_either(path: str, data: bytes) -> NamedLedgers:
    """Where the path fits a managed ledger and a cursor: what the value names as either, if it could be both."""
    read: list[NamedLedgers] = []
    for place in (_of_managed_ledger, _of_cursor_node):
        with suppress(UndecodableError):
            read.append(place(data))
    if not read:
        raise UndecodableError(f"{path} is neither a managed ledger nor a cursor that this version can read")
    return NamedLedgers(
        frozenset().union(*(each.ids for each in read)),
        frozenset().union(*(each.replaced for each in read)),
        any(each.of_shadow for each in read),
    )


def _of_cursor_node(data: bytes) -> NamedLedgers:
    cursor = cursor_references(data)
    # While the topic is loaded a node's compacted ledger may be an old one; then it stays until an audit.
    named = (*cursor.buckets.values(), cursor.cursor_ledger, cursor.compacted_ledger)
    return NamedLedgers(frozenset(ledger_id for ledger_id in named if ledger_id is not None))


def _of_managed_ledger(data: bytes) -> NamedLedgers:
    references = managed_ledger_references(data)
    kept = frozenset(ledger_id for ledger_id, entry in references.ledgers.items() if entry.in_bookkeeper)
    return NamedLedgers(kept, frozenset(references.ledgers.keys() - kept), SHADOW_SOURCE in references.properties)


class ReferenceCounts:
    """How many nodes name each ledger, by the last walk and the changes since.

    Attributes:
        unreadable: nodes that could not be read or understood, by path.
        hidden: a node that may not be read; None if the last walk met none.
        ledgers: how many ledgers exist.
        references: how often nodes name a ledger.
    """

    def __init__(self) -> None:
        self.unreadable: dict[str, UnreadableNode] = {}
        self.hidden: str | None = None
        self.references = 0
        self._existing = BitMap64()
        # Ledgers that a node names, and how many further nodes name the few that several do.
        self._referenced = BitMap64()
        self._further: Counter[LedgerId] = Counter()
        self._linked: list[LedgerId] = []
        # Only nodes that name something; what a shadow names begins with a byte of its own.
        self._named: dict[str, bytes] = {}

    @property
    def ledgers(self) -> int:
        return len(self._existing)

    @property
    def nodes(self) -> int:
        """How many nodes name a ledger."""
        return len(self._named)

    def exists(self, ledger_id: LedgerId) -> bool:
        return ledger_id in self._existing

    def named_by(self, ledger_id: LedgerId) -> tuple[str, ...]:
        """The nodes that name a ledger; looks at all of them, also while another thread walks."""
        wanted = array("q", [ledger_id]).tobytes()
        named = ((path, self._named.get(path, b"")) for path in list(self._named))
        return tuple(path for path, data in named if wanted in data and ledger_id in _unpacked(data)[0])

    def is_unreferenced(self, ledger_id: LedgerId) -> bool:
        """Whether the ledger exists and no node names it."""
        return ledger_id in self._existing and ledger_id not in self._referenced

    def unreferenced(self) -> "array[int]":
        """All such ledgers, ascending."""
        return (self._existing - self._referenced).to_array()

    def take_linked(self) -> list[LedgerId]:
        """The ledgers that nodes began to name, by `read`, since this was asked last."""
        linked, self._linked = self._linked, []
        return linked

    def hear(self, ledger_id: LedgerId, *, exists: bool) -> None:
        """A ledger's node was made or removed."""
        (self._existing.add if exists else self._existing.discard)(ledger_id)

    def read(self, path: str, data: bytes | None) -> list[VanishedReference]:
        """A node as it is now, None if it is gone; the ledgers that lost their last reference by that."""
        self.unreadable.pop(path, None)
        try:
            named = NamedLedgers() if data is None else named_ledgers(path, data)
        except UndecodableError as error:
            # What it named before counts on; what it may name now protects.
            self.unreadable[path] = undecodable_node(path, locate(path).place, str(error))
            return []
        before, was_shadow = _unpacked(self._named.get(path, b""))
        if packed := _packed(named):
            self._named[path] = packed
        else:
            self._named.pop(path, None)
        linked = named.ids - before
        for ledger_id in linked:
            if ledger_id in self._referenced:
                self._further[ledger_id] += 1
            self._referenced.add(ledger_id)
        self._linked += linked
        gone = before - named.ids
        for ledger_id in gone:
            if self._further[ledger_id]:
                self._further[ledger_id] -= 1
            else:
                self._referenced.discard(ledger_id)
        self.references += len(named.ids) - len(before)
        if was_shadow or named.of_shadow:
            return []
        return [
            VanishedReference(ledger_id, path, replaced=ledger_id in named.replaced)
            for ledger_id in sorted(gone)
            if ledger_id not in self._referenced
        ]

    def walk(self, ledger_ids: Iterable[LedgerIds], nodes: Iterable[Sequence[WalkedNode]]) -> list[VanishedReference]:
        """Everything anew, from a whole reading; what lost its last reference since the reading before.

        Nothing is changed when an iteration raises. Ledgers are read first, so that one that is linked meanwhile is
        not missed.
        """
        existing = BitMap64()
        for listed in ledger_ids:
            # pyroaring takes this kind of array as it is, and several times as fast when it is sorted.
            existing |= BitMap64(array("Q", np.sort(listed).tobytes()))
        # Nodes that name what they named before are not kept twice: only those that differ, and each path's hash.
        differing: dict[str, bytes] = {}
        hashes = array("q")
        unreadable: dict[str, UnreadableNode] = {}
        vanished: list[VanishedReference] = []
        hidden: str | None = None
        for node in (each for piece in nodes for each in piece):
            hidden = hidden or (node.path if node.unreadable is not None else None)
            hashes.append(hash(node.path))
            self._walk_node(node, differing, unreadable, vanished)
        # Below a node that may not be read nothing was listed.
        removed = [
            (path, data)
            for path, data in self._not_among(hashes)
            if not (unreadable and any(above in unreadable for above in upwards(path)))
        ]
        self._named.update(differing)
        for path in [*(path for path, data in differing.items() if not data), *(path for path, _ in removed)]:
            self._named.pop(path, None)
        del differing, hashes
        named = array("Q")
        for data in self._named.values():
            named.frombytes(data[len(data) % 8 :])
        self.unreadable, self.references, self.hidden = unreadable, len(named), hidden
        ascending = np.frombuffer(named, np.uint64)
        ascending.sort()
        self._existing, self._referenced = existing, BitMap64(named)
        self._further = Counter(ascending[1:][ascending[1:] == ascending[:-1]].tolist())
        for path, data in removed:
            ids, of_shadow = _unpacked(data)
            if not of_shadow:
                vanished += [VanishedReference(each, path, replaced=False) for each in sorted(ids)]
        return [each for each in vanished if each.ledger_id not in self._referenced]

    def _walk_node(
        self,
        node: WalkedNode,
        differing: dict[str, bytes],
        unreadable: dict[str, UnreadableNode],
        vanished: list[VanishedReference],
    ) -> None:
        before = self._named.get(node.path, b"")
        # What an unreadable node named counts on.
        if node.unreadable is not None:
            unreadable[node.path] = unreadable_node(node.path, node.unreadable)
            return
        try:
            now = named_ledgers(node.path, node.data)
        except UndecodableError as error:
            unreadable[node.path] = undecodable_node(node.path, locate(node.path).place, str(error))
            return
        data = _packed(now)
        if data == before:
            return
        differing[node.path] = data
        ids, was_shadow = _unpacked(before)
        if not (was_shadow or now.of_shadow):
            gone = sorted(ids - now.ids)
            vanished += [VanishedReference(each, node.path, replaced=each in now.replaced) for each in gone]

    def _not_among(self, hashes: "array[int]") -> Iterator[tuple[str, bytes]]:
        """Nodes that named something, and whose paths have none of these hashes.

        One that is gone and has the hash of another that is there stays, and protects what it named.
        """
        walked = np.sort(np.array(hashes, np.int64))
        nodes = iter(self._named.items())
        while piece := list(islice(nodes, _AT_ONCE)):
            found = _is_among(np.fromiter((hash(path) for path, _ in piece), np.int64, len(piece)), walked)
            yield from (node for node, is_found in zip(piece, found.tolist(), strict=True) if not is_found)


def _packed(named: NamedLedgers) -> bytes:
    """Ids as 8 bytes each, after one byte where they are a shadow's; empty for none."""
    ids = array("q", named.ids).tobytes()
    return b"s" + ids if named.of_shadow and ids else ids


def _unpacked(data: bytes) -> tuple[frozenset[LedgerId], bool]:
    of_shadow = len(data) % 8 == 1
    ids = array("q")
    ids.frombytes(data[1:] if of_shadow else data)
    return frozenset(map(LedgerId, ids)), of_shadow


def _is_among(wanted: LedgerIds, ascending: LedgerIds) -> npt.NDArray[np.bool_]:
    if not len(ascending):
        return np.zeros(len(wanted), np.bool_)
    places = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
    found: npt.NDArray[np.bool_] = ascending[places] == wanted
    return found
