"""The composition root of the demo: a cluster of this machine, and eyes to look at it with."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from service.adapters.bookkeeper.bookie_addresses import RegisteredBookies
from service.adapters.bookkeeper.bookie_connections import BookieConnections
from service.adapters.bookkeeper.bookie_wire import BookieEntries
from service.adapters.metadata.live_nodes import LiveTree, LiveZooKeeper
from service.adapters.metadata.zookeeper import open_metadata_store
from service.adapters.pulsar.clients import SHARED, open_client
from service.audit.census import take_census
from service.closing import close_at_the_end
from service.demo.playing import Eyes, Report, play
from service.demo.stage import Stage, demo_directory
from service.ledger_ownership.compaction import CompactedLedgers
from service.ledger_ownership.paths import DEFAULT_LEDGERS_ROOT
from service.local_cluster.addresses import ClusterAddresses
from service.model.clocks import Clock, SystemClock
from service.observability.logging import configure_logging


def play_demo(directory: Path | None, topics: int, say: Callable[[str], None]) -> Report:
    """Tell the story on a cluster of this machine; leaves it running."""
    configure_logging("ERROR", "text")
    clock = SystemClock()
    return play(Stage(directory or demo_directory(), clock, say), lambda at: _eyes(at, clock), clock, say, topics)


def strike_demo(directory: Path | None, say: Callable[[str], None]) -> None:
    """End the demo's processes and remove its files."""
    Stage(directory or demo_directory(), SystemClock(), say).strike()


@contextmanager
def _eyes(addresses: ClusterAddresses, clock: Clock) -> Iterator[Eyes]:
    with ExitStack() as stack:
        store = open_metadata_store(addresses.metadata_store_url, clock)
        close_at_the_end(stack, store)
        entries = BookieEntries(BookieConnections(RegisteredBookies(store).address))
        close_at_the_end(stack, entries)
        client = open_client(addresses.broker_service_url)
        close_at_the_end(stack, client)
        zookeeper = LiveZooKeeper(addresses.metadata_store_url)
        tree = LiveTree(zookeeper, store, clock, DEFAULT_LEDGERS_ROOT)
        yield Eyes(
            store, partial(take_census, tree, CompactedLedgers(store, entries, DEFAULT_LEDGERS_ROOT)), client, SHARED
        )
