"""The composition root of what an audit is made of: requests become adapters, dumps and listings come out.

Like `bootstrap.app` it names concrete adapters and closes what it opened; it is apart from it because these
commands need neither brokers nor a running service.
"""

from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.bookkeeper.bookie_listing import BookieListing
from pulsar_sidecar.adapters.metadata.addressing import parse_credential
from pulsar_sidecar.adapters.metadata.node_walk import WalkOptions
from pulsar_sidecar.adapters.metadata.snapshots import SnapshotFile
from pulsar_sidecar.adapters.metadata.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.adapters.metadata.zookeeper_walk import LedgerNodes, ZooKeeperWalk
from pulsar_sidecar.adapters.parquet.output import parquet_output
from pulsar_sidecar.audit.ports import LedgerSource, NodeSource
from pulsar_sidecar.audit.requests import DumpRequest, ListingRequest, dump_source, listing_source, zookeeper_rate
from pulsar_sidecar.audit.sources.cursor_ledgers import CursorLedgers
from pulsar_sidecar.audit.sources.dumping import dump
from pulsar_sidecar.audit.sources.listing import list_ledgers
from pulsar_sidecar.audit.sources.manifests import Manifest, SourceKind
from pulsar_sidecar.bootstrap.process import ended_in_order, tool_version
from pulsar_sidecar.bootstrap.store_access import command_session, command_tls
from pulsar_sidecar.model.clocks import Clock, SystemClock
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.metadata_stores import WHERE_TO_FIND_IT
from pulsar_sidecar.model.progress import Report

_ZOOKEEPERS_OWN = "/zookeeper"
_DIGITS = "0123456789"


def make_dump(request: DumpRequest, report: Report) -> Manifest:
    kind, address = dump_source(request.source)
    clock = SystemClock()
    with ended_in_order(), ExitStack() as stack:
        source = _node_source(request, kind, address, clock)
        url = request.cursors_from or (f"zk:{address}" if kind is SourceKind.ZOOKEEPER else None)
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


def make_listing(request: ListingRequest, report: Report) -> Manifest:
    clock = SystemClock()
    with ended_in_order(), ExitStack() as stack:
        return list_ledgers(
            _ledger_source(request, clock, stack),
            partial(parquet_output, request.output),
            clock,
            report,
            ledgers_root=request.ledgers_root,
            with_metadata=request.with_metadata,
            tool_version=tool_version(),
        )


def _node_source(request: DumpRequest, kind: SourceKind, address: str, clock: Clock) -> NodeSource:
    skip = tuple(f"{request.ledgers_root}/{digit}" for digit in _DIGITS) if request.without_ledgers else ()
    if kind is SourceKind.ZOOKEEPER:
        if request.chroot:
            raise InvalidInputError(
                "--chroot is for snapshots; write a running ZooKeeper's chroot into its address: zk://HOST:PORT/CHROOT"
            )
        return ZooKeeperWalk(
            f"zk:{address}",
            clock,
            WalkOptions(
                parse_credential(request.metadata_store_auth), zookeeper_rate(request.nodes_per_second), command_tls()
            ),
            is_skipped=lambda path: path == _ZOOKEEPERS_OWN or path.startswith(skip),
        )
    if request.nodes_per_second is not None:
        raise InvalidInputError("--rate limits reads from a running ZooKeeper; leave it out for a snapshot")
    return SnapshotFile(Path(address), chroot=request.chroot, skip=skip)


def _cursor_ledgers(url: str, request: DumpRequest, clock: Clock, stack: ExitStack) -> CursorLedgers:
    options = command_session(request.metadata_store_auth)
    store = stack.enter_context(ZooKeeperMetadataStore(url, clock, options))
    entries = stack.enter_context(closing(BookieEntries(BookieConnections(store, request.ledgers_root))))
    return CursorLedgers(store, entries, request.ledgers_root)


def _ledger_source(request: ListingRequest, clock: Clock, stack: ExitStack) -> LedgerSource:
    kind, urls = listing_source(request.source)
    if kind is SourceKind.BOOKIE_HTTP:
        listing = BookieListing(
            urls, clock, with_metadata=request.with_metadata, ledgers_per_second=request.ledgers_per_second or None
        )
        return stack.enter_context(closing(listing))
    if request.metadata_store_url is None:
        raise InvalidInputError(f"--source metadata needs --metadata-store-url zk:HOST:PORT; {WHERE_TO_FIND_IT}")
    credential = parse_credential(request.metadata_store_auth)
    return LedgerNodes(
        request.metadata_store_url,
        stack.enter_context(
            ZooKeeperMetadataStore(request.metadata_store_url, clock, command_session(request.metadata_store_auth))
        ),
        clock,
        request.ledgers_root,
        WalkOptions(credential, zookeeper_rate(request.ledgers_per_second), command_tls()),
        with_metadata=request.with_metadata,
    )
