"""What pins ledgers: from the metadata store, from bookies, and from brokers about what they have loaded."""

from pulsar_sidecar.adapters.bookkeeper.bookie_disks import RegisteredBookies
from pulsar_sidecar.adapters.pulsar.rest.trim_policies import BrokerTrimPolicies
from pulsar_sidecar.adapters.pulsar.wire.cursor_dues import StoredDueTimes
from pulsar_sidecar.adapters.pulsar.wire.delayed_entries import BulkDelayedEntries
from pulsar_sidecar.api.rooms.pins import bookies_router, router
from pulsar_sidecar.bootstrap.cluster_access import ClusterAccess
from pulsar_sidecar.bootstrap.room import Room, RoomEntry
from pulsar_sidecar.ledger_ownership.compaction import CompactedLedgers
from pulsar_sidecar.ledger_ownership.pins.bookies import BookiesReader
from pulsar_sidecar.ledger_ownership.pins.gathering import Sources
from pulsar_sidecar.ledger_ownership.pins.reading import PinsReader

_BOOKIES_AT_ONCE = 8


def open_pins(cluster: ClusterAccess) -> Room:
    """It has no loops and no metrics: everything is read when it is asked for."""
    store, root = cluster.store, cluster.settings.ledgers_root_path
    entries = BulkDelayedEntries(store, cluster.entries, None, root, cluster.clock)
    sources = Sources(
        store=store,
        cursors=cluster.cursors,
        lengths=cluster.lengths,
        compacted=CompactedLedgers(store, cluster.entries, root),
        views=cluster.owners,
        policies=BrokerTrimPolicies(cluster.rest, store),
        dues=StoredDueTimes(entries, cluster.stored_indexes),
        clock=cluster.clock,
        ledgers_root=root,
    )
    threads = cluster.threads(_BOOKIES_AT_ONCE, "bookies")
    bookies = cluster.closing(RegisteredBookies(store, cluster.bookies, threads, root))
    every = BookiesReader(lambda: cluster.whole_store().ledgers(), bookies, cluster.clock)
    return Room([PinsReader(sources, bookies), every])


ENTRY = RoomEntry([router, bookies_router], open_pins)
