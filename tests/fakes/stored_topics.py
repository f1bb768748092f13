"""A stored topic: its list of ledgers, their metadata, and a listening bookie with their entries."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.bookkeeper.topic_entries import BookieTopicEntries
from pulsar_sidecar.model.clocks import Clock, Pace
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.ownership.paths import ledger_path, managed_ledger_path
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml

from tests.fakes.bookie_servers import FakeBookie
from tests.fakes.bookkeeper import ledger_metadata_bytes
from tests.fakes.clock import FakeClock
from tests.fakes.metadata import FakeMetadataStore

CLOSED_MS = 1_700_000_000_000


class StoredTopic:
    """A topic whose ledgers are added in order, the last one open, and read over real sockets."""

    def __init__(self, name: str = "persistent://public/default/orders") -> None:
        self.name: TopicName = parse_topic_name(name)
        self.store = FakeMetadataStore()
        self.bookie = FakeBookie()
        self.entries = BookieEntries(BookieConnections(connect_timeout_seconds=1, read_timeout_seconds=1))
        self.info = ml.ManagedLedgerInfo()

    def add(
        self,
        ledger_id: int,
        payloads: Sequence[bytes],
        *,
        closed: bool = True,
        last_confirmed: int = -1,
        bookie: str | None = None,
    ) -> ml.ManagedLedgerInfo.LedgerInfo:
        """Add a ledger with these entries; ``last_confirmed`` is the last entry acknowledged to the writer."""
        for entry_id, payload in enumerate(payloads):
            self.bookie.store(ledger_id, entry_id, payload, last_confirmed=last_confirmed)
        metadata = ledger_metadata_bytes(
            LedgerState.CLOSED if closed else LedgerState.OPEN,
            last_entry_id=len(payloads) - 1 if closed else None,
            ensemble=[bookie or self.bookie.bookie_id],
            write_quorum_size=1,
            ack_quorum_size=1,
        )
        self.store.put(ledger_path(LedgerId(ledger_id)), metadata)
        listed = self.info.ledgerInfo.add(ledgerId=ledger_id, timestamp=0)
        if closed:
            listed.entries, listed.size, listed.timestamp = len(payloads), sum(map(len, payloads)), CLOSED_MS
        self.write()
        return listed

    def offload(self, listed: ml.ManagedLedgerInfo.LedgerInfo, *, in_bookkeeper: bool = False) -> None:
        """Move the ledger to tiered storage, which the sidecar does not read."""
        context = listed.offloadContext
        context.uidMsb, context.uidLsb, context.complete, context.bookkeeperDeleted = 1, 2, True, not in_bookkeeper
        context.driverMetadata.name = "aws-s3"
        if not in_bookkeeper:
            self.store.remove(ledger_path(LedgerId(listed.ledgerId)))
        self.write()

    def write(self) -> None:
        """Put the list of ledgers into the metadata store."""
        self.store.put(managed_ledger_path(self.name.managed_ledger_name), self.info.SerializeToString())

    def reader(self, clock: Clock | None = None, per_second: float | None = None) -> BookieTopicEntries:
        return BookieTopicEntries(self.store, self.entries, "/ledgers", Pace(clock or FakeClock(), per_second))

    def close(self) -> None:
        self.entries.close()
        self.bookie.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
