"""Ledgers that exist, minus ledgers that any node names: what is left over is what deletion is about.

Counts, not a diff of nodes: an id that was put into a list and taken out between two readings is in no reading, but
the ledger's own node was seen to be made. Invariants: a ledger counts as referenced as long as one node, as it was last
read, names it; what an unread node may name is never counted as unreferenced by it (`unreadable`), and the copy of a
ledger that tiered storage replaced is marked (`VanishedReference.replaced`).

Ten million ledgers take 35 MB here at most (two sets of ids, which lie close together), and three million nodes that
name them 0.8 GB. A ledger that several nodes name, as a shadow topic's, takes 100 bytes more, and one with a copy in
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

from pulsar_sidecar.ledger_deletion.watch.named_ledgers import (
    NamedLedgers,
    PackedNodes,
    has_copies,
    named_ledgers,
    packed_attempt,
    packed_ids,
)
from pulsar_sidecar.ledger_deletion.watch.ports import LedgerIds, WalkedNode
from pulsar_sidecar.ledger_ownership.places import locate
from pulsar_sidecar.ledger_ownership.protections import UnreadableNode, undecodable_node, unreadable_node, upwards
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext

_AT_ONCE = 1_000_000


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


@dataclass(frozen=True, slots=True)
class VanishedCopy:
    """An offload attempt that was in one reading of a list and not in the next, whether it succeeded or not.

    Attributes:
        path: the managed ledger's node.
        still_listed: the list still names the ledger: another attempt has replaced this one.
    """

    ledger_id: LedgerId
    path: str
    context: OffloadContext
    still_listed: bool


Vanished = VanishedReference | VanishedCopy


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
        # Only nodes that name something.
        self._named: dict[str, bytes] = {}
        self._packing = PackedNodes()

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
        return tuple(path for path, data in named if wanted in data and ledger_id in self._packing.unpack(data).ids)

    def copy_named_by(self, ledger_id: LedgerId, context: OffloadContext) -> tuple[str, ...]:
        """The lists, shadows' as well, that name this offload attempt; looks at all that name any."""
        wanted = packed_attempt(ledger_id, context)
        found = [(path, data) for path, data in self._named.items() if has_copies(data) and wanted in data]
        named = ((path, self._packing.unpack(data).copies.get(ledger_id)) for path, data in found)
        return tuple(path for path, each in named if each is not None and each.attempt == context.attempt)

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

    def read(self, path: str, data: bytes | None) -> list[Vanished]:
        """A node as it is now, None if it is gone.

        The ledgers that lost their last reference by that, and the offload attempts that the node no longer names.
        """
        self.unreadable.pop(path, None)
        try:
            named = NamedLedgers() if data is None else named_ledgers(path, data)
        except UndecodableError as error:
            # What it named before counts on; what it may name now protects.
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
        """Everything anew, from a whole reading; what vanished since the reading before, as `read` has it.

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
        vanished: list[Vanished] = []
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
        # What an unreadable node named counts on.
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
        """Nodes that named something, and whose paths have none of these hashes.

        One that is gone and has the hash of another that is there stays, and protects what it named.
        """
        walked = np.sort(np.array(hashes, np.int64))
        nodes = iter(self._named.items())
        while piece := list(islice(nodes, _AT_ONCE)):
            found = _is_among(np.fromiter((hash(path) for path, _ in piece), np.int64, len(piece)), walked)
            yield from (node for node, is_found in zip(piece, found.tolist(), strict=True) if not is_found)


def _vanished(path: str, before: NamedLedgers, now: NamedLedgers) -> list[Vanished]:
    """What a node named and no longer does; of a shadow nothing, whose ledgers and copies are its source's."""
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
