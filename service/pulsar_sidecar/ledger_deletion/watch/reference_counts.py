"""Ledgers that exist, minus ledgers that any node names: what is left over is what deletion is about.

Counts, not a diff of nodes: an id that was put into a list and taken out between two readings is in no reading, but
the ledger's own node was seen to be made. Invariants: a ledger counts as referenced as long as one node, as it was last
read, names it; what an unread node may name is never counted as unreferenced by it (`unreadable`), and the copy of a
ledger that tiered storage replaced is marked (`VanishedReference.replaced`).

Ten million ledgers take 100 MB here (10 bytes each, in arrays), and three million nodes that name them 0.9 GB.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np
import numpy.typing as npt

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

_EXISTS, _MOST = 0x8000, 0x7FFF
_RECENT = 100_000
_AT_ONCE = 1_000_000
_SCHEMA_SLASHES = 2
_Number = TypeVar("_Number", np.int64, np.uint16)


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
        self._states = _States()
        self._linked: list[LedgerId] = []
        # Only nodes that name something; what a shadow names begins with a byte of its own.
        self._named: dict[str, bytes] = {}

    @property
    def ledgers(self) -> int:
        return self._states.existing

    @property
    def nodes(self) -> int:
        """How many nodes name a ledger."""
        return len(self._named)

    def exists(self, ledger_id: LedgerId) -> bool:
        """Whether the ledger has a node."""
        return bool(self._states.get(ledger_id) & _EXISTS)

    def named_by(self, ledger_id: LedgerId) -> tuple[str, ...]:
        """The nodes that name a ledger; looks at all of them, also while another thread walks."""
        wanted = array("q", [ledger_id]).tobytes()
        named = ((path, self._named.get(path, b"")) for path in list(self._named))
        return tuple(path for path, data in named if wanted in data and ledger_id in _unpacked(data)[0])

    def is_unreferenced(self, ledger_id: LedgerId) -> bool:
        """Whether the ledger exists and no node names it."""
        return self._states.get(ledger_id) == _EXISTS

    def unreferenced(self) -> LedgerIds:
        """All such ledgers, ascending."""
        return self._states.unreferenced()

    def take_linked(self) -> list[LedgerId]:
        """The ledgers that nodes began to name, by `read`, since this was asked last."""
        linked, self._linked = self._linked, []
        return linked

    def hear(self, ledger_id: LedgerId, *, exists: bool) -> None:
        """A ledger's node was made or removed."""
        self._states.set_existing(ledger_id, exists=exists)

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
            self._states.count(ledger_id, 1)
        self._linked += linked
        gone = before - named.ids
        for ledger_id in gone:
            self._states.count(ledger_id, -1)
        self.references += len(named.ids) - len(before)
        if was_shadow or named.of_shadow:
            return []
        return [
            VanishedReference(ledger_id, path, replaced=ledger_id in named.replaced)
            for ledger_id in sorted(gone)
            if self._states.get(ledger_id) & _MOST == 0
        ]

    def walk(self, ledger_ids: Iterable[LedgerIds], nodes: Iterable[Sequence[WalkedNode]]) -> list[VanishedReference]:
        """Everything anew, from a whole reading; what lost its last reference since the reading before.

        Nothing is changed when an iteration raises. Ledgers are read first, so that one that is linked meanwhile is
        not missed.
        """
        existing = np.concatenate([np.empty(0, np.int64), *ledger_ids])
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
        counted = array("q")
        for data in self._named.values():
            counted.frombytes(data[len(data) % 8 :])
        self.unreadable, self.references, self.hidden = unreadable, len(counted), hidden
        self._states = _States.of(existing, np.frombuffer(counted, np.int64) if counted else np.empty(0, np.int64))
        for path, data in removed:
            ids, of_shadow = _unpacked(data)
            if not of_shadow:
                vanished += [VanishedReference(each, path, replaced=False) for each in sorted(ids)]
        return [each for each in vanished if self._states.get(each.ledger_id) & _MOST == 0]

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


def _pieces(values: npt.NDArray[_Number]) -> Iterator[npt.NDArray[_Number]]:
    return (values[start : start + _AT_ONCE] for start in range(0, len(values), _AT_ONCE))


def _is_among(wanted: LedgerIds, ascending: LedgerIds) -> npt.NDArray[np.bool_]:
    if not len(ascending):
        return np.zeros(len(wanted), np.bool_)
    places = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
    found: npt.NDArray[np.bool_] = ascending[places] == wanted
    return found


class _States:
    """For each ledger whether it exists and how many nodes name it, in 10 bytes.

    A count that reaches 32,767 stays there: such a ledger never counts as unreferenced again, until the next walk.
    """

    def __init__(self) -> None:
        self._ids: LedgerIds = np.empty(0, np.int64)
        self._values: npt.NDArray[np.uint16] = np.empty(0, np.uint16)
        # Ledgers that came since; they go into the arrays together.
        self._recent: dict[LedgerId, int] = {}
        self.existing = 0

    @classmethod
    def of(cls, existing: LedgerIds, counted: LedgerIds) -> "_States":
        """The states after a walk: ``counted`` has an id for each node that names it. Both arrays are sorted in place.

        Looks ids up some at a time: what numpy makes on the way would otherwise be larger than the result.
        """
        states = cls()
        existing.sort()
        counted.sort()
        missing = [piece[~_is_among(piece, existing)] for piece in _pieces(counted)]
        ids = np.concatenate([existing, *missing]) if any(map(len, missing)) else existing
        ids.sort()
        is_first = np.ones(len(ids), np.bool_)
        np.not_equal(ids[1:], ids[:-1], out=is_first[1:])
        states._ids = ids if is_first.all() else ids[is_first]
        states._values = np.empty(len(states._ids), np.uint16)
        for piece, values in zip(_pieces(states._ids), _pieces(states._values), strict=True):
            counts = np.searchsorted(counted, piece, "right") - np.searchsorted(counted, piece, "left")
            np.minimum(counts, _MOST, out=values, casting="unsafe")
            values[_is_among(piece, existing)] |= _EXISTS
        states.existing = int(np.count_nonzero(states._values & _EXISTS))
        return states

    def get(self, ledger_id: LedgerId) -> int:
        recent = self._recent.get(ledger_id)
        if recent is not None:
            return recent
        at = self._place(ledger_id)
        return 0 if at is None else int(self._values[at])

    def set_existing(self, ledger_id: LedgerId, *, exists: bool) -> None:
        before = self.get(ledger_id)
        after = before | _EXISTS if exists else before & _MOST
        self.existing += (after - before) // _EXISTS
        self._set(ledger_id, after)

    def count(self, ledger_id: LedgerId, change: int) -> None:
        before = self.get(ledger_id)
        count = before & _MOST
        if count < _MOST:
            self._set(ledger_id, before & _EXISTS | max(0, count + change))

    def unreferenced(self) -> LedgerIds:
        self._merge()
        found: LedgerIds = self._ids[self._values == _EXISTS]
        return found

    def _place(self, ledger_id: LedgerId) -> int | None:
        at = int(np.searchsorted(self._ids, ledger_id))
        return at if at < len(self._ids) and self._ids[at] == ledger_id else None

    def _set(self, ledger_id: LedgerId, value: int) -> None:
        at = None if ledger_id in self._recent else self._place(ledger_id)
        if at is not None:
            self._values[at] = value
        else:
            self._recent[ledger_id] = value
            if len(self._recent) >= _RECENT:
                self._merge()

    def _merge(self) -> None:
        if self._recent:
            ids = np.concatenate([self._ids, np.fromiter(self._recent.keys(), np.int64, len(self._recent))])
            values = np.concatenate([self._values, np.fromiter(self._recent.values(), np.uint16, len(self._recent))])
            # Most came last and are larger than all before them, so this is nearly sorted already.
            order = np.argsort(ids, kind="stable")
            self._ids, self._values, self._recent = ids[order], values[order], {}
        left = self._values != 0
        if not left.all():
            self._ids, self._values = self._ids[left], self._values[left]
