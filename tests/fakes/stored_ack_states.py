"""Cursors with holes in a metadata store in memory, as brokers leave them after an unload."""

from collections.abc import Sequence

from pulsar_sidecar.features.acknowledgements.limits import AckStateLimits
from pulsar_sidecar.features.acknowledgements.survey import AckStateSurveyor
from pulsar_sidecar.features.acknowledgements.workflow import CachedSurveys
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName, encode_cursor, parse_topic_name
from pulsar_sidecar.ownership.paths import POLICIES, cursor_path, managed_ledger_path

from tests.fakes.bookkeeper import cursor_bytes, managed_ledger_bytes
from tests.fakes.clock import FakeClock
from tests.fakes.delayed_index import FakeCursorPositions, FakeLedgerLengths
from tests.fakes.metadata import FakeMetadataStore

ORDERS = parse_topic_name("persistent://public/default/orders")
FOUR = [(1, 2, 2), (1, 4, 4), (1, 6, 6), (2, 0, 3)]
"""One range more than fits."""


class StoredHoles:
    """Topics of two ledgers with ten entries each, with space for three ranges."""

    def __init__(self) -> None:
        self.clock = FakeClock(5_000)
        self.store = FakeMetadataStore()
        self.cursors = FakeCursorPositions()
        self.lengths = FakeLedgerLengths()
        self.broker = AckStateLimits(max_unacked_ranges=3, pause_enabled=True)
        self.pauses: dict[str, bool] = {}
        self.surveyor = AckStateSurveyor(self.store, self.cursors, self.lengths, self, self, self.clock, map)
        self.surveys = CachedSurveys(self.surveyor, self.clock)

    def topic(self, topic: TopicName = ORDERS) -> None:
        self.store.put(f"{POLICIES}/{topic.namespace}", b"{}")
        self.store.put(managed_ledger_path(topic.managed_ledger_name), managed_ledger_bytes([1, 2]))

    def cursor(
        self,
        name: str,
        mark_delete: tuple[int, int],
        holes: Sequence[tuple[int, int, int]] = (),
        *,
        of: TopicName = ORDERS,
    ) -> None:
        """Add a cursor that has acknowledged these entries beyond its position: ledger, first, last."""
        if self.store.peek(managed_ledger_path(of.managed_ledger_name)) is None:
            self.topic(of)
        self.cursors.ranges[Position(LedgerId(mark_delete[0]), EntryId(mark_delete[1]))] = list(holes)
        self.store.put(cursor_path(of.managed_ledger_name, encode_cursor(name)), cursor_bytes(mark_delete=mark_delete))

    def limits(self, broker: str | None) -> AckStateLimits:
        assert broker is None
        return self.broker

    def of_namespace(self, namespace: str) -> bool | None:
        return self.pauses.get(namespace)
