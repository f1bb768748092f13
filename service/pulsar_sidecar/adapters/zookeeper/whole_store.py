"""All ledgers, and all nodes that may reference ledgers, of a live ZooKeeper, without tables of Arrow."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from pulsar_sidecar.adapters.metadata_access import UNLIMITED, WalkOptions
from pulsar_sidecar.adapters.zookeeper.node_walk import (
    NO_LEAVES,
    NOT_PERMITTED,
    PIECE_NODES,
    Leaves,
    Matches,
    NodeWalk,
    WalkedNodes,
    ledger_filters,
    nothing,
)
from pulsar_sidecar.features.ledger_deletion.watch.ports import LedgerIds, WalkedNode, WholeStore
from pulsar_sidecar.model.clocks import Clock, StopSignal
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicDomain
from pulsar_sidecar.ownership.paths import (
    MANAGED_LEDGERS,
    PARTITIONED_TOPICS,
    REFERRING,
    SCHEMAS,
    ledger_id_of_path,
)
from pulsar_sidecar.ownership.shadows import may_be_shadow, may_hold_shadow

_NODES_AT_ONCE = 2_000
"""So few that readers notice soon when they have to stop or pause."""
_PERSISTENT = TopicDomain.PERSISTENT.value
_is_not_of_topics: Matches = re.compile(
    rf"(?!(/admin|{MANAGED_LEDGERS}|{PARTITIONED_TOPICS})$|({MANAGED_LEDGERS}|{PARTITIONED_TOPICS})/).*"
).fullmatch
_FOLDER_OF_TOPICS = re.compile(rf"({MANAGED_LEDGERS}|{PARTITIONED_TOPICS})(/[^/]+){{2,3}}/{_PERSISTENT}")


class ZooKeeperWholeStore:
    """`ledger_deletion.watch.ports.WholeStore` by walking; each call is a walk of its own.

    A node that may not be read hides the nodes below it, so it is named wherever it is; nodes above
    ``/managed-ledgers`` and ``/schemas`` are named in no other case.
    """

    def __init__(self, url: str, clock: Clock, ledgers_root: str, options: WalkOptions = UNLIMITED) -> None:
        self._url, self._clock, self._ledgers_root, self._options = url, clock, ledgers_root, options

    def ledger_ids(self) -> Iterator[LedgerIds]:
        for piece in self._walk_of_ledgers(with_metadata=False).pieces():
            paths = (*piece.paths, *piece.unread, *piece.unreadable)
            for path in piece.unreadable:
                if ledger_id_of_path(path, self._ledgers_root) is None:
                    raise _refused(path)
            ids = (ledger_id_of_path(path, self._ledgers_root) for path in paths)
            yield np.array([ledger_id for ledger_id in ids if ledger_id is not None], np.int64)

    def ledgers(self) -> Iterator[tuple[LedgerId, bytes]]:
        """Yield each ledger with its own metadata: `ownership.ports.EveryLedger`."""
        for piece in self._walk_of_ledgers(with_metadata=True).pieces():
            for path in piece.unreadable:
                raise _refused(path)
            for path, value in _read(piece):
                ledger_id = ledger_id_of_path(path, self._ledgers_root)
                if ledger_id is not None:
                    yield ledger_id, value

    def nodes(self) -> Iterator[Sequence[WalkedNode]]:
        is_skipped = re.compile(rf"/(?!({MANAGED_LEDGERS[1:]}|{SCHEMAS[1:]})(/|$)).*").fullmatch
        for piece in self._walk("/", is_skipped, piece_nodes=_NODES_AT_ONCE).pieces():
            yield [
                *(WalkedNode(path, value) for path, value in _read(piece) if path.startswith(REFERRING)),
                *(WalkedNode(path, b"", NOT_PERMITTED) for path in piece.unreadable),
            ]

    def possible_shadows(self, hurry: StopSignal) -> Iterator[tuple[int, Sequence[tuple[str, bytes]]]]:
        walk = self._walk("/", _is_not_of_topics, leaves=_TOPICS, piece_nodes=_NODES_AT_ONCE, hurry=hurry)
        for piece in walk.pieces():
            for path in piece.unreadable:
                raise _refused(path)
            found = [(path, data) for path, data in _read(piece) if may_be_shadow(data)]
            yield len(piece.paths) + piece.passed_over, found

    def _walk_of_ledgers(self, *, with_metadata: bool) -> NodeWalk:
        is_skipped, is_unread = ledger_filters(self._ledgers_root, with_metadata=with_metadata)
        return self._walk(self._ledgers_root, is_skipped, is_unread=is_unread)

    def _walk(
        self,
        root: str,
        is_skipped: Matches,
        *,
        is_unread: Matches = nothing,
        leaves: Leaves = NO_LEAVES,
        piece_nodes: int = PIECE_NODES,
        hurry: StopSignal | None = None,
    ) -> NodeWalk:
        return NodeWalk(
            self._url,
            self._clock,
            replace(self._options, hurry=hurry),
            root=root,
            is_skipped=is_skipped,
            is_unread=is_unread,
            leaves=leaves,
            piece_nodes=piece_nodes,
        )


class LiveTree:
    """`audit.reference_scan.ScannedTree` by walking."""

    def __init__(self, whole: WholeStore) -> None:
        self._whole = whole

    def ledger_ids(self) -> frozenset[LedgerId]:
        return frozenset(LedgerId(id_) for ids in self._whole.ledger_ids() for id_ in ids.tolist())

    def referring_nodes(self) -> Iterator[tuple[str, bytes]]:
        for nodes in self._whole.nodes():
            for node in nodes:
                if node.unreadable is not None:
                    raise _refused(node.path)
                yield node.path, node.data


def _is_topic(folder: str, name: str) -> bool:
    """Return True for a topic, unless Pulsar's first version may have topics below it: a namespace "persistent"."""
    return name != _PERSISTENT and _holds_topics(folder)


@lru_cache(maxsize=1_000)
def _holds_topics(folder: str) -> bool:
    return _FOLDER_OF_TOPICS.fullmatch(folder) is not None


_TOPICS = Leaves(_is_topic, may_hold_shadow)


def _read(piece: WalkedNodes) -> Iterator[tuple[str, bytes]]:
    for path, start, end in zip(piece.paths, *piece.values, strict=True):
        yield path, piece.data[start:end]


def _refused(path: str) -> TemporaryError:
    return TemporaryError(f"{path} cannot be read ({NOT_PERMITTED}); give a credential that may")
