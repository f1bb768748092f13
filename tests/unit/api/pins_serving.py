"""The routes of pins over a cluster in memory, for tests of the doors."""

from collections.abc import Iterator
from contextlib import contextmanager

from pulsar_sidecar.api.rooms.pins import bookies_router, router
from pulsar_sidecar.ledger_ownership.pins.bookies import BookiesReader
from pulsar_sidecar.ledger_ownership.pins.ports import StoredCopies
from pulsar_sidecar.model.ids import BookieId, LedgerId
from pulsar_sidecar.model.lookups import Unreadable

from tests.fakes.bookkeeper import data_custom_metadata, ledger_metadata_bytes
from tests.fakes.deletion_service import FakeDeletionService
from tests.fakes.pins import FIGURES, TOPIC, PinnedCluster
from tests.unit.api.serving import Served, served

BOOKIE = BookieId("bookie-1:3181")


@contextmanager
def served_pins(cluster: PinnedCluster) -> Iterator[Served]:
    """One ledger of `TOPIC`, a deleted one that `BOOKIE` has not collected, and a bookie that does not answer."""
    cluster.bookies.stored[LedgerId(60)] = StoredCopies(700, (BOOKIE,))
    cluster.bookies.read = {BOOKIE: FIGURES, BookieId("bookie-2:3181"): Unreadable("no answer")}
    cluster.bookies.down = {BookieId("bookie-2:3181")}
    every = [(LedgerId(1), ledger_metadata_bytes(custom_metadata=data_custom_metadata(TOPIC.managed_ledger_name)))]
    bookies = BookiesReader(lambda: iter(every), cluster.bookies, cluster.clock)
    with served(FakeDeletionService(), routers=[router(cluster.reader), bookies_router(bookies)]) as server:
        yield server
