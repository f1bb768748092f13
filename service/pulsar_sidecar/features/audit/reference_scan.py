"""Scan of a small cluster: every existing ledger and every reference to one, read straight from the store.

It keeps all references in memory, so it is for demonstrations, tests and clusters of some ten thousand ledgers. It
returns a complete result or raises: a node that cannot be read or understood never counts as one without references.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.topic_stats import COMPACTION_CURSOR
from pulsar_sidecar.ownership.compaction import CompactedLedgers
from pulsar_sidecar.ownership.places import Place, locate
from pulsar_sidecar.ownership.references import cursor_references, managed_ledger_references, schema_references


class ScannedTree(Protocol):
    """Metadata store of a scan; each call reads it again completely, or raises `TemporaryError`."""

    def ledger_ids(self) -> frozenset[LedgerId]:
        """Return every ledger that has metadata."""

    def referring_nodes(self) -> Iterator[tuple[str, bytes]]:
        """Yield path and value of every node below ``/managed-ledgers`` and ``/schemas``."""


@dataclass(frozen=True, slots=True)
class ReferenceScan:
    """Ledgers of a cluster that have metadata, and the paths of the nodes that reference each ledger.

    A ledger of which only an offloaded copy is left is not among the references.
    """

    ledgers: frozenset[LedgerId]
    references: dict[LedgerId, tuple[str, ...]]

    @property
    def orphans(self) -> frozenset[LedgerId]:
        return self.ledgers - self.references.keys()

    @property
    def dangling(self) -> frozenset[LedgerId]:
        return frozenset(self.references.keys() - self.ledgers)


def scan_references(tree: ScannedTree, compacted: CompactedLedgers) -> ReferenceScan:
    """Scan the ledgers first, so that one linked in between is no orphan. `TemporaryError`: a node is unreadable."""
    ledgers = tree.ledger_ids()
    found: dict[LedgerId, list[str]] = {}
    for path, data in tree.referring_nodes():
        if data:
            for ledger_id in _references(path, data, compacted, ledgers):
                found.setdefault(ledger_id, []).append(path)
    return ReferenceScan(ledgers, {ledger_id: tuple(paths) for ledger_id, paths in found.items()})


def _references(
    path: str, data: bytes, compacted: CompactedLedgers, ledgers: frozenset[LedgerId]
) -> Iterator[LedgerId]:
    place = locate(path).place
    if place is Place.SCHEMA:
        yield from schema_references(data)
    elif place in (Place.CURSOR, Place.EITHER):
        cursor = cursor_references(data)
        if cursor.cursor_ledger is not None:
            yield cursor.cursor_ledger
        yield from cursor.buckets.values()
        if path.endswith(f"/{COMPACTION_CURSOR}"):
            named = compacted.referenced(cursor)
            # The last two entries are read; compaction deletes the older one's ledger when it has replaced it.
            yield from named & ledgers or named
    elif place is Place.MANAGED_LEDGER:
        for ledger_id, entry in managed_ledger_references(data).ledgers.items():
            if entry.in_bookkeeper:
                yield ledger_id


def demand_complete(scan: ReferenceScan) -> None:
    """Refuse a scan that found no ledgers at all (`TemporaryError`): an empty listing is a failed listing."""
    if not scan.ledgers:
        raise TemporaryError("no ledger was found: check the metadata store's address and ledgersRootPath")
