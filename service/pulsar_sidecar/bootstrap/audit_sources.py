"""The composition root of an audit's inputs: dumps and listings.

Like `bootstrap.app` it names concrete adapters and closes what it opens; it is apart because these commands need
neither brokers nor a running service.
"""

import os
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.etcd.etcd_source import EtcdLedgers, EtcdNodes
from pulsar_sidecar.adapters.etcd.etcd_walk import EVERYTHING, EtcdWalk, below_root, everything_but_ledgers
from pulsar_sidecar.adapters.metadata_access import WalkOptions, parse_credential
from pulsar_sidecar.adapters.metadata_stores import open_store
from pulsar_sidecar.adapters.offload.object_listing import object_listing
from pulsar_sidecar.adapters.parquet.output import parquet_output
from pulsar_sidecar.adapters.rocksdb.copies import LedgersOfCopy, RocksDBCopy
from pulsar_sidecar.adapters.zookeeper.snapshots import SnapshotFile
from pulsar_sidecar.adapters.zookeeper.zookeeper_walk import LedgerNodes, ZooKeeperWalk
from pulsar_sidecar.bootstrap.process import ended_in_order, tool_version
from pulsar_sidecar.bootstrap.store_access import command_session, command_tls, offload_credentials
from pulsar_sidecar.features.audit.ports import LedgerSource, NodeSource, StoreMoment
from pulsar_sidecar.features.audit.requests import (
    DumpRequest,
    ListingRequest,
    OffloadListingRequest,
    dump_source,
    zookeeper_rate,
)
from pulsar_sidecar.features.audit.sources.cursor_ledgers import CursorLedgers
from pulsar_sidecar.features.audit.sources.dumping import dump
from pulsar_sidecar.features.audit.sources.listing import list_ledgers
from pulsar_sidecar.features.audit.sources.manifests import Manifest, SourceKind
from pulsar_sidecar.features.audit.sources.offload_listing import list_offloaded
from pulsar_sidecar.model.clocks import Clock, SystemClock
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.metadata_stores import ETCD, WHERE_TO_FIND_IT, is_etcd
from pulsar_sidecar.model.progress import Report
from pulsar_sidecar.ownership.offload_locations import parse_location, target_at
from pulsar_sidecar.ownership.paths import read_instance_id

_ZOOKEEPERS_OWN = "/zookeeper"
_DIGITS = "0123456789"
_CLUSTERS, _GLOBAL = "/admin/clusters", "global"


def take_dump(request: DumpRequest, report: Report) -> Manifest:
    kind, address = dump_source(request.source)
    clock = SystemClock()
    with ended_in_order(), ExitStack() as stack:
        source = _node_source(request, kind, address, clock)
        live = {SourceKind.ZOOKEEPER: f"zk:{address}", SourceKind.ETCD: f"{ETCD}{address}"}
        url = request.cursors_from or live.get(kind)
        return dump(
            source,
            None if url is None else _cursor_ledgers(url, request, clock, stack),
            partial(parquet_output, request.output),
            clock,
            report,
            ledgers_root=request.ledgers_root,
            without_ledgers=request.without_ledgers,
            tool_version=tool_version(),
        )


def export_listing(request: ListingRequest, report: Report) -> Manifest:
    clock = SystemClock()
    with ended_in_order(), ExitStack() as stack:
        source = _ledger_source(request, clock, stack)
        return list_ledgers(
            source,
            partial(parquet_output, request.output),
            clock,
            report,
            ledgers_root=request.ledgers_root,
            with_metadata=request.with_metadata or isinstance(source, LedgersOfCopy),
            tool_version=tool_version(),
        )


def export_offload_listing(request: OffloadListingRequest, report: Report) -> Manifest:
    url = request.metadata_store_url
    if url is None:
        raise InvalidInputError(f"--metadata-store-url zk:HOST:PORT is missing; {WHERE_TO_FIND_IT}")
    credentials = offload_credentials(os.environ)
    targets = [target_at(parse_location(text), request.region) for text in request.locations]
    clock = SystemClock()
    options = command_session(request.metadata_store_auth)

    def moment() -> StoreMoment:
        walk_options = _walk_options(request.metadata_store_auth, 0)
        walk: NodeSource
        if is_etcd(url):
            walk = EtcdNodes(EtcdWalk(url, clock, [below_root(_CLUSTERS)], walk_options))
        else:
            walk = ZooKeeperWalk(url, clock, walk_options, root=_CLUSTERS)
        paths = [path for batch in walk.batches() for path in batch.column("path").to_pylist()]
        names = sorted(name for path in paths if (name := path.removeprefix(f"{_CLUSTERS}/")) != path)
        clusters = tuple(name for name in names if "/" not in name and name != _GLOBAL)
        return StoreMoment(walk.ending().zxids.first, read_instance_id(store, request.ledgers_root), clusters)

    with ended_in_order(), open_store(url, clock, options) as store:
        return list_offloaded(
            [object_listing(target, credentials) for target in targets],
            moment,
            partial(parquet_output, request.output),
            clock,
            report,
            ledgers_root=request.ledgers_root,
            cluster_name=request.cluster_name,
            tool_version=tool_version(),
        )


def _node_source(request: DumpRequest, kind: SourceKind, address: str, clock: Clock) -> NodeSource:
    skip = tuple(f"{request.ledgers_root}/{digit}" for digit in _DIGITS) if request.without_ledgers else ()
    if kind is SourceKind.ETCD:
        if request.chroot:
            raise InvalidInputError("--chroot is for snapshots; Pulsar's metadata in etcd has none")
        ranges = everything_but_ledgers(request.ledgers_root) if request.without_ledgers else (EVERYTHING,)
        options = _walk_options(request.metadata_store_auth, request.nodes_per_second)
        return EtcdNodes(EtcdWalk(f"{ETCD}{address}", clock, ranges, options))
    if kind is SourceKind.ZOOKEEPER:
        if request.chroot:
            raise InvalidInputError(
                "--chroot is for snapshots; write a running ZooKeeper's chroot into its address: zk://HOST:PORT/CHROOT"
            )
        return ZooKeeperWalk(
            f"zk:{address}",
            clock,
            _walk_options(request.metadata_store_auth, request.nodes_per_second),
            is_skipped=lambda path: path == _ZOOKEEPERS_OWN or path.startswith(skip),
        )
    if kind is SourceKind.ROCKSDB_COPY:
        if request.chroot or request.cursors_from or request.nodes_per_second is not None:
            raise InvalidInputError("--chroot, --cursors-from and --rate are for ZooKeeper; leave them out for a copy")
        return RocksDBCopy(Path(address), skip=skip)
    if request.nodes_per_second is not None:
        raise InvalidInputError("--rate limits reads from a running ZooKeeper; leave it out for a snapshot")
    return SnapshotFile(Path(address), chroot=request.chroot, skip=skip)


def _walk_options(auth: str | None, nodes_per_second: float | None) -> WalkOptions:
    return WalkOptions(parse_credential(auth), zookeeper_rate(nodes_per_second), command_tls())


def _cursor_ledgers(url: str, request: DumpRequest, clock: Clock, stack: ExitStack) -> CursorLedgers:
    options = command_session(request.metadata_store_auth)
    store = stack.enter_context(closing(open_store(url, clock, options)))
    entries = stack.enter_context(closing(BookieEntries(BookieConnections(store, request.ledgers_root))))
    return CursorLedgers(store, entries, request.ledgers_root)


def _ledger_source(request: ListingRequest, clock: Clock, stack: ExitStack) -> LedgerSource:
    if request.metadata_store_url is None:
        raise InvalidInputError(f"--metadata-store-url zk:HOST:PORT is missing; {WHERE_TO_FIND_IT}")
    copy = request.metadata_store_url.removeprefix(f"{SourceKind.ROCKSDB_COPY.value}:")
    if copy != request.metadata_store_url:
        return LedgersOfCopy(Path(copy), request.ledgers_root)
    url, root = request.metadata_store_url, request.ledgers_root
    store = stack.enter_context(closing(open_store(url, clock, command_session(request.metadata_store_auth))))
    options = _walk_options(request.metadata_store_auth, request.ledgers_per_second)
    if is_etcd(url):
        walk = EtcdWalk(url, clock, [below_root(root)], options, keys_only=not request.with_metadata)
        return EtcdLedgers(walk, store, root)
    return LedgerNodes(url, store, clock, root, options, with_metadata=request.with_metadata)
