"""A census of a small cluster: every ledger that exists and every reference to one, read straight from the store.

It walks the whole tree, so it is for demonstrations, tests and clusters of some ten thousand ledgers. It answers
completely or raises: a node that cannot be read or understood is never counted as referencing nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from service.ledger_ownership.compaction import COMPACTION_CURSOR, CompactedLedgers
from service.ledger_ownership.paths import DEFAULT_LEDGERS_ROOT, MANAGED_LEDGERS, SCHEMAS, ledger_id_of_path
from service.ledger_ownership.references import (
    cursor_references,
    managed_ledger_references,
    schema_references,
)
from service.model.errors import TemporaryError
from service.model.ids import LedgerId
from service.model.metadata import MetadataStore, Node

_LEDGER_TREE_NAMES = {"available", "cookies", "idgen", "idgen-long", "underreplication", "INSTANCEID", "LAYOUT"}
_DOMAINS = ("persistent",)


@dataclass(frozen=True, slots=True)
class Census:
    """What was counted.

    Attributes:
        ledgers: every ledger that has metadata.
        references: the referencing nodes' paths by ledger id; offloaded copies without BookKeeper's are left out.
    """

    ledgers: frozenset[LedgerId]
    references: dict[LedgerId, tuple[str, ...]]

    @property
    def orphans(self) -> frozenset[LedgerId]:
        """Ledgers that nothing references."""
        return self.ledgers - self.references.keys()

    @property
    def dangling(self) -> frozenset[LedgerId]:
        """Ledgers that are referenced but have no metadata."""
        return frozenset(self.references.keys() - self.ledgers)


def take_census(store: MetadataStore, compacted: CompactedLedgers, ledgers_root: str = DEFAULT_LEDGERS_ROOT) -> Census:
    """Count the cluster: the ledgers first, the references after, so that a ledger linked in between is not an orphan.

    Raises:
        TemporaryError: something could not be read; nothing can be said.
    """
    ledgers = frozenset(_ledgers(store, ledgers_root))
    found: dict[LedgerId, list[str]] = {}
    for path, ledger_id in _references(store, compacted, ledgers):
        found.setdefault(ledger_id, []).append(path)
    return Census(ledgers, {ledger_id: tuple(paths) for ledger_id, paths in found.items()})


def _ledgers(store: MetadataStore, root: str) -> Iterator[LedgerId]:
    for top in store.children(root) or []:
        if top not in _LEDGER_TREE_NAMES:
            for path in _walk(store, f"{root}/{top}"):
                ledger_id = ledger_id_of_path(path, root)
                if ledger_id is not None:
                    yield ledger_id


def _references(
    store: MetadataStore, compacted: CompactedLedgers, ledgers: frozenset[LedgerId]
) -> Iterator[tuple[str, LedgerId]]:
    for node in _nodes(store, SCHEMAS, _holds_data):
        yield from ((node.path, ledger_id) for ledger_id in schema_references(node.data))
    for node in _nodes(store, MANAGED_LEDGERS, _holds_data):
        if _is_cursor(node.path):
            cursor = cursor_references(node.data)
            if cursor.cursor_ledger is not None:
                yield node.path, cursor.cursor_ledger
            yield from ((node.path, ledger_id) for ledger_id in cursor.buckets.values())
            if node.path.endswith(f"/{COMPACTION_CURSOR}"):
                named = compacted.referenced(cursor)
                # The last two entries are read; the older one's ledger goes when compaction has replaced it.
                yield from ((node.path, ledger_id) for ledger_id in named & ledgers or named)
        else:
            for ledger_id, entry in managed_ledger_references(node.data).ledgers.items():
                if not (entry.offload and entry.offload.bookkeeper_deleted):
                    yield node.path, ledger_id


def _is_cursor(path: str) -> bool:
    # /managed-ledgers/<tenant>[/<cluster>]/<namespace>/persistent/<topic>[/<cursor>]
    parts = path.removeprefix(f"{MANAGED_LEDGERS}/").split("/")
    return len(parts) - parts.index(_DOMAINS[0]) == 3


def _holds_data(path: str) -> bool:
    if path.startswith(f"{SCHEMAS}/"):
        return True
    parts = path.removeprefix(f"{MANAGED_LEDGERS}/").split("/")
    return _DOMAINS[0] in parts and len(parts) - parts.index(_DOMAINS[0]) in (2, 3)


def _nodes(store: MetadataStore, root: str, holds_data: Callable[[str], bool]) -> Iterator[Node]:
    paths = [path for path in _walk(store, root) if path != root and holds_data(path)]
    nodes: Sequence[Node | None] = store.read_many(paths)
    yield from (node for node in nodes if node is not None and node.data)


def _walk(store: MetadataStore, root: str) -> Iterator[str]:
    pending = [root]
    while pending:
        path = pending.pop()
        names = store.children(path)
        if names is None:
            if path == root:
                return
            # It vanished between the parent's listing and its own: a deleted topic or ledger, not an omission.
            continue
        yield path
        pending.extend(f"{path}/{name}" for name in names)


def demand_complete(census: Census) -> None:
    """Refuse a census that counted no ledgers at all: an empty listing is a failed listing.

    Raises:
        TemporaryError: nothing was counted.
    """
    if not census.ledgers:
        raise TemporaryError("no ledger was found: check the metadata store's address and ledgersRootPath")
