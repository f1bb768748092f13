"""The composition root of the demo: a cluster on this machine, and its inspector."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.metadata_stores import open_store, open_whole_store
from pulsar_sidecar.adapters.pulsar_client.clients import SHARED, open_client
from pulsar_sidecar.adapters.zookeeper.whole_store import LiveTree
from pulsar_sidecar.bootstrap.cluster_access import close_at_the_end
from pulsar_sidecar.demo.environment import ClusterInspector, DemoEnvironment
from pulsar_sidecar.demo.run import DemoReport, run
from pulsar_sidecar.features.audit.reference_scan import scan_references
from pulsar_sidecar.local_cluster.spec import Role
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.model.clocks import Clock, SystemClock
from pulsar_sidecar.model.progress import Report
from pulsar_sidecar.observability.logging import configure_logging
from pulsar_sidecar.ownership.compaction import CompactedLedgers
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT


def run_demo(directory: Path | None, topics: int, metadata_store: Role, report: Report) -> DemoReport:
    """Run the demo on a cluster of this machine, and leave the cluster running."""
    configure_logging("ERROR", "text")
    clock = SystemClock()
    environment = DemoEnvironment(directory, clock, report, metadata_store)
    return run(environment, lambda at: open_inspector(at, clock), topics)


def tear_demo_down(directory: Path | None, report: Report) -> None:
    """End the demo's processes and remove its files."""
    DemoEnvironment(directory, SystemClock(), report).tear_down()


@contextmanager
def open_inspector(addresses: ClusterAddresses, clock: Clock) -> Iterator[ClusterInspector]:
    """Yield the demo's inspector of a cluster, and close it at the end."""
    with ExitStack() as stack:
        store = open_store(addresses.metadata_store_url, clock)
        close_at_the_end(stack, store.close)
        entries = BookieEntries(BookieConnections(store))
        close_at_the_end(stack, entries.close)
        client = open_client(addresses.broker_service_url)
        close_at_the_end(stack, client.close)
        tree = LiveTree(open_whole_store(addresses.metadata_store_url, clock, DEFAULT_LEDGERS_ROOT))
        yield ClusterInspector(
            store,
            partial(scan_references, tree, CompactedLedgers(store, entries, DEFAULT_LEDGERS_ROOT)),
            client,
            SHARED,
        )
