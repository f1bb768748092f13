"""Counts of the nodes that name each ledger; existing ledgers that no node names are candidates for deletion.

Counts, not a diff of nodes: an id that was added to a list and removed between two readings is in no reading, but the
creation of the ledger's own node was seen. Invariants: a ledger counts as referenced as long as one node, as last read,
names it; ledgers that an unread node may name never count as unreferenced by it (`unreadable`), and the copy of a
ledger that tiered storage replaced is marked (`VanishedReference.replaced`).

Ten million ledgers take at most 35 MB (two sets of ids, which lie close together), and three million nodes that name
them 0.8 GB. A ledger that several nodes name, such as a shadow topic's, takes 100 bytes more, and one with a copy in
tiered storage 32.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from pulsar_sidecar.features.ledger_deletion.watch.named_ledgers import (
    NamedLedgers,
    PackedNodes,
    has_copies,
    named_ledgers,
    packed_attempt,
    packed_ids,
)
from pulsar_sidecar.features.ledger_deletion.watch.ports import LedgerIds, WalkedNode
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.ownership.places import locate
from pulsar_sidecar.ownership.protections import UnreadableNode, undecodable_node, unreadable_node, upwards

_AT_ONCE = 1_000_000


@dataclass(frozen=True, slots=True)
class VanishedReference:
    """Ledger whose last reference was in one reading of a node and not in the next.

    Attributes:
        path: the node.
        replaced: True if the node still names the ledger, for its copy in tiered storage.
    """

    ledger_id: LedgerId
    path: str
    replaced: bool


@dataclass(frozen=True, slots=True)
class VanishedCopy:
    """Offload attempt, successful or not, that was in one reading of a list and not in the next.

    Attributes:
        path: node of the managed ledger.
        still_listed: True if the list still names the ledger: another attempt has replaced this one.
    """

    ledger_id: LedgerId
    path: str
    context: OffloadContext
    still_listed: bool


Vanished = VanishedReference | VanishedCopy


class ReferenceCounts:
    """Number of nodes that name each ledger, by the last walk and the changes since.

    Attributes:
        unreadable: nodes that could not be read or decoded, by path.
        hidden: node that the sidecar may not read; None if the last walk met none.
        ledgers: number of existing ledgers.
        references: number of references from nodes to ledgers.
    """

    def __init__(self) -> None:
        self.unreadable: dict[str, UnreadableNode] = {}
        self.hidden: str | None = None
        self.references = 0
        self._existing = BitMap64()
        # Ledgers that a node names, and the number of further nodes for the few that several name.
        self._referenced = BitMap64()
        self._further: Counter[LedgerId] = Counter()
        self._linked: list[LedgerId] = []
        # Only nodes that name something.
        self._named: dict[str, bytes] = {}
        self._packing = PackedNodes()

    @property
    def ledgers(self) -> int:
        return len(self._existing)

    @property
    def nodes(self) -> int:
        """Number of nodes that name a ledger."""
        return len(self._named)

    def exists(self, ledger_id: LedgerId) -> bool:
        return ledger_id in self._existing

    def named_by(self, ledger_id: LedgerId) -> tuple[str, ...]:
        """Return the nodes that name a ledger; scans all of them, even while another thread walks."""
        wanted = array("q", [ledger_id]).tobytes()
        named = ((path, self._named.get(path, b"")) for path in list(self._named))
        return tuple(path for path, data in named if wanted in data and ledger_id in self._packing.unpack(data).ids)

    def copy_named_by(self, ledger_id: LedgerId, context: OffloadContext) -> tuple[str, ...]:
        """Return the lists, including shadows', that name this offload attempt; scans all that name any."""
        wanted = packed_attempt(ledger_id, context)
        found = [(path, data) for path, data in self._named.items() if has_copies(data) and wanted in data]
        named = ((path, self._packing.unpack(data).copies.get(ledger_id)) for path, data in found)
        return tuple(path for path, each in named if each is not None and each.attempt == context.attempt)

    def is_unreferenced(self, ledger_id: LedgerId) -> bool:
        """Return True if the ledger exists and no node names it."""
        return ledger_id in self._existing and ledger_id not in self._referenced

    def unreferenced(self) -> "array[int]":
        """Return the existing ledgers that no node names, ascending."""
        return (self._existing - self._referenced).to_array()

    def take_linked(self) -> list[LedgerId]:
        """Return the ledgers that nodes began to name, by `read`, since the last call."""
        linked, self._linked = self._linked, []
        return linked

    def note_existence(self, ledger_id: LedgerId, *, exists: bool) -> None:
        """Note that a ledger's node was created or removed."""
        (self._existing.add if exists else self._existing.discard)(ledger_id)

    def read(self, path: str, data: bytes | None) -> list[Vanished]:
        """Apply a node's current data, None if it is gone, and return the references that vanished.

        That is the ledgers that thereby lost their last reference, and the offload attempts that the node no longer
        names.
        """
        self.unreadable.pop(path, None)
        try:
            named = NamedLedgers() if data is None else named_ledgers(path, data)
        except UndecodableError as error:
            # Its earlier references stay counted; anything that it may name now protects.
            self.unreadable[path] = undecodable_node(path, locate(path).place, str(error))
            return []
        before = self._packing.unpack(self._named.get(path, b""))
        if packed := self._packing.pack(named):
            self._named[path] = packed
        else:
            self._named.pop(path, None)
        linked = named.ids - before.ids
        for ledger_id in linked:
            if ledger_id in self._referenced:
                self._further[ledger_id] += 1
            self._referenced.add(ledger_id)
        self._linked += linked
        for ledger_id in before.ids - named.ids:
            if self._further[ledger_id]:
                self._further[ledger_id] -= 1
            else:
                self._referenced.discard(ledger_id)
        self.references += len(named.ids) - len(before.ids)
        return self._without_references(_vanished(path, before, named))

    def walk(self, ledger_ids: Iterable[LedgerIds], nodes: Iterable[Sequence[WalkedNode]]) -> list[Vanished]:
        """Recount everything from a full read; return what vanished since the previous one, as `read` does.

        Changes nothing when an iteration raises. Ledgers are read first, so that one linked meanwhile is not missed.
        """
        existing = BitMap64()
        for listed in ledger_ids:
            # pyroaring accepts this kind of array without conversion, and several times as fast when it is sorted.
            existing |= BitMap64(array("Q", np.sort(listed).tobytes()))
        # Unchanged nodes are not stored twice: only nodes that differ, and each path's hash.
        differing: dict[str, bytes] = {}
        hashes = array("q")
        unreadable: dict[str, UnreadableNode] = {}
        vanished: list[Vanished] = []
        hidden: str | None = None
        for node in (each for piece in nodes for each in piece):
            hidden = hidden or (node.path if node.unreadable is not None else None)
            hashes.append(hash(node.path))
            self._walk_node(node, differing, unreadable, vanished)
        # Nothing was listed below a node that the sidecar may not read.
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
            named.frombytes(packed_ids(data))
        self.unreadable, self.references, self.hidden = unreadable, len(named), hidden
        ascending = np.frombuffer(named, np.uint64)
        ascending.sort()
        self._existing, self._referenced = existing, BitMap64(named)
        self._further = Counter(ascending[1:][ascending[1:] == ascending[:-1]].tolist())
        for path, data in removed:
            vanished += _vanished(path, self._packing.unpack(data), NamedLedgers())
        return self._without_references(vanished)

    def _without_references(self, vanished: Iterable[Vanished]) -> list[Vanished]:
        return [each for each in vanished if isinstance(each, VanishedCopy) or each.ledger_id not in self._referenced]

    def _walk_node(
        self,
        node: WalkedNode,
        differing: dict[str, bytes],
        unreadable: dict[str, UnreadableNode],
        vanished: list[Vanished],
    ) -> None:
        before = self._named.get(node.path, b"")
        # An unreadable node's earlier references stay counted.
        if node.unreadable is not None:
            unreadable[node.path] = unreadable_node(node.path, node.unreadable)
            return
        try:
            now = named_ledgers(node.path, node.data)
        except UndecodableError as error:
            unreadable[node.path] = undecodable_node(node.path, locate(node.path).place, str(error))
            return
        data = self._packing.pack(now)
        if data == before:
            return
        differing[node.path] = data
        vanished += _vanished(node.path, self._packing.unpack(before), now)

    def _not_among(self, hashes: "array[int]") -> Iterator[tuple[str, bytes]]:
        """Yield nodes that named something, and whose paths have none of these hashes.

        A deleted node whose hash equals an existing one's stays, and protects its ledgers.
        """
        walked = np.sort(np.array(hashes, np.int64))
        nodes = iter(self._named.items())
        while piece := list(islice(nodes, _AT_ONCE)):
            found = _is_among(np.fromiter((hash(path) for path, _ in piece), np.int64, len(piece)), walked)
            yield from (node for node, is_found in zip(piece, found.tolist(), strict=True) if not is_found)


def _vanished(path: str, before: NamedLedgers, now: NamedLedgers) -> list[Vanished]:
    """Return a node's dropped references; none for a shadow, whose ledgers and copies are its source's."""
    if before.of_shadow or now.of_shadow:
        return []
    gone: list[Vanished] = [
        VanishedReference(ledger_id, path, replaced=ledger_id in now.replaced)
        for ledger_id in sorted(before.ids - now.ids)
    ]
    listed = now.ids | now.replaced
    for ledger_id, context in before.copies.items():
        left = now.copies.get(ledger_id)
        if left is None or left.attempt != context.attempt:
            gone.append(VanishedCopy(ledger_id, path, context, still_listed=ledger_id in listed))
    return gone


def _is_among(wanted: LedgerIds, ascending: LedgerIds) -> npt.NDArray[np.bool_]:
    if not len(ascending):
        return np.zeros(len(wanted), np.bool_)
    places = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
    found: npt.NDArray[np.bool_] = ascending[places] == wanted
    return found
