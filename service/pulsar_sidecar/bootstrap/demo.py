"""The composition root of the demo: a cluster of this machine, and inspector to look at it with."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.metadata.whole_store import LiveTree
from pulsar_sidecar.adapters.metadata.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.adapters.pulsar.client.clients import SHARED, open_client
from pulsar_sidecar.audit.reference_scan import scan_references
from pulsar_sidecar.bootstrap.cluster_access import close_at_the_end
from pulsar_sidecar.demo.environment import ClusterInspector, DemoEnvironment
from pulsar_sidecar.demo.run import DemoReport, run
from pulsar_sidecar.ledger_ownership.compaction import CompactedLedgers
from pulsar_sidecar.ledger_ownership.paths import DEFAULT_LEDGERS_ROOT
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.model.clocks import Clock, SystemClock
from pulsar_sidecar.model.progress import Report
from pulsar_sidecar.observability.logging import configure_logging


def run_demo(directory: Path | None, topics: int, report: Report) -> DemoReport:
    """Run the demo on a cluster of this machine; leaves it running."""
    configure_logging("ERROR", "text")
    clock = SystemClock()
    return run(DemoEnvironment(directory, clock, report), lambda at: open_inspector(at, clock), topics)


def tear_demo_down(directory: Path | None, report: Report) -> None:
    """End the demo's processes and remove its files."""
    DemoEnvironment(directory, SystemClock(), report).tear_down()


@contextmanager
def open_inspector(addresses: ClusterAddresses, clock: Clock) -> Iterator[ClusterInspector]:
    """The demo's own look at a cluster, which is closed at the end."""
    with ExitStack() as stack:
        store = ZooKeeperMetadataStore(addresses.metadata_store_url, clock)
        close_at_the_end(stack, store.close)
        entries = BookieEntries(BookieConnections(store))
        close_at_the_end(stack, entries.close)
        client = open_client(addresses.broker_service_url)
        close_at_the_end(stack, client.close)
        tree = LiveTree(addresses.metadata_store_url, clock, DEFAULT_LEDGERS_ROOT)
        yield ClusterInspector(
            store,
            partial(scan_references, tree, CompactedLedgers(store, entries, DEFAULT_LEDGERS_ROOT)),
            client,
            SHARED,
        )
