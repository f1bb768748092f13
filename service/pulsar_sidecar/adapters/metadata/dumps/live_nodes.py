"""A living ZooKeeper as the source of a dump or of a listing, on a session of its own."""

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from pulsar_sidecar.adapters.metadata.dumps.zookeeper_walk import WalkOrder, ZooKeeperWalk
from pulsar_sidecar.adapters.metadata.session import KazooSession, SessionSettings, ZooKeeperCredential
from pulsar_sidecar.adapters.metadata.url import parse_metadata_store_url
from pulsar_sidecar.audit.ports import Ending
from pulsar_sidecar.audit.sources.listing import ledgers_among
from pulsar_sidecar.audit.sources.manifests import OrderRange, Proof, Source, SourceKind
from pulsar_sidecar.ledger_ownership.paths import MANAGED_LEDGERS, SCHEMAS, instance_id_of, instance_id_path
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.metadata import MetadataStore

_SESSION_TIMEOUT_MS = 30_000
_PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class LiveZooKeeper:
    """How to reach it; ``url`` as Pulsar's ``metadataStoreUrl``."""

    url: str
    credential: ZooKeeperCredential | None = None

    @property
    def address(self) -> str:
        """The connect string, without a credential."""
        return parse_metadata_store_url(self.url).hosts

    def session(self, clock: Clock) -> KazooSession:
        """A new session."""
        return KazooSession(
            SessionSettings(self.address, _SESSION_TIMEOUT_MS, _PATIENCE_SECONDS, self.credential), clock
        )


class WalkedNodes:
    """`audit.ports.NodeSource` by walking; the session lives as long as the walk."""

    def __init__(self, zookeeper: LiveZooKeeper, clock: Clock, order: WalkOrder) -> None:
        self.source = Source(SourceKind.ZOOKEEPER, zookeeper.address)
        self._zookeeper = zookeeper
        self._clock = clock
        self._order = order
        self._walk: ZooKeeperWalk | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """See `NodeSource.batches`."""
        with closing(self._zookeeper.session(self._clock)) as session:
            self._walk = ZooKeeperWalk(session, self._clock, self._order)
            yield from self._walk.batches()

    def ending(self) -> Ending:
        """What the syncs at both ends said."""
        walk = self._walk
        if walk is None or walk.first_zxid is None or walk.last_zxid is None:
            raise TemporaryError("the walk is not over; begin again")
        proof = Proof(f"sync at zxid 0x{walk.first_zxid:x}", f"sync at zxid 0x{walk.last_zxid:x}", dict(walk.checks))
        return Ending(OrderRange(walk.first_zxid, walk.last_zxid), proof)


class LedgerNodes:
    """`audit.ports.LedgerSource` from BookKeeper's own nodes."""

    def __init__(
        self,
        zookeeper: LiveZooKeeper,
        store: MetadataStore,
        clock: Clock,
        ledgers_root: str,
        *,
        with_metadata: bool,
        nodes_per_second: float | None,
    ) -> None:
        root = re.escape(ledgers_root)
        # Directories of ledgers have numbers for names; everything else there is BookKeeper's own business.
        is_skipped = re.compile(rf"{root}/[^0-9][^/]*").fullmatch
        is_unread = re.compile(rf"{root}/.+/L[0-9]{{4}}" if not with_metadata else r"(?!)").fullmatch
        order = WalkOrder(ledgers_root, is_skipped, is_unread, nodes_per_second)
        self._nodes = WalkedNodes(zookeeper, clock, order)
        self._store = store
        self._root = ledgers_root

    @property
    def source(self) -> Source:
        return self._nodes.source

    def instance_id(self) -> str:
        """See `LedgerSource.instance_id`; here it is always known."""
        return instance_id_of(self._store.read(instance_id_path(self._root)), self._root)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """See `LedgerSource.batches`."""
        return ledgers_among(self._nodes.batches(), self._root)

    def ending(self) -> Ending:
        """See `WalkedNodes.ending`."""
        return self._nodes.ending()


class LiveTree:
    """`audit.reference_scan.ScannedTree` by walking."""

    def __init__(self, zookeeper: LiveZooKeeper, store: MetadataStore, clock: Clock, ledgers_root: str) -> None:
        self._zookeeper = zookeeper
        self._store = store
        self._clock = clock
        self._root = ledgers_root

    def ledger_ids(self) -> frozenset[LedgerId]:
        """See `ScannedTree.ledger_ids`."""
        nodes = LedgerNodes(
            self._zookeeper, self._store, self._clock, self._root, with_metadata=False, nodes_per_second=None
        )
        return frozenset(LedgerId(id_) for batch in nodes.batches() for id_ in batch.column("ledger_id").to_pylist())

    def referring_nodes(self) -> Iterator[tuple[str, bytes]]:
        """See `ScannedTree.referring_nodes`."""
        is_other = re.compile(rf"/(?!({MANAGED_LEDGERS[1:]}|{SCHEMAS[1:]})(/|$)).*").fullmatch
        for batch in WalkedNodes(self._zookeeper, self._clock, WalkOrder(is_skipped=is_other)).batches():
            paths, values, refusals = (batch.column(name).to_pylist() for name in ("path", "value", "unreadable"))
            for path, value, refusal in zip(paths, values, refusals, strict=True):
                if refusal is not None:
                    raise TemporaryError(f"{path} cannot be read ({refusal}); give a credential that may")
                yield path, value
