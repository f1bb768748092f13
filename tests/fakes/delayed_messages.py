"""A broker with delayed messages, its bookies and the cancellation log, all in memory and under a test's control.

Like a real one it keeps acknowledgements in memory and, later, in storage; a crash forgets unstored ones. It delivers
due messages to consumers that acknowledge at once or never.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field

from pulsar_sidecar.backlog.ports import DelayPolicy, EntryAnswer, EntryFacts
from pulsar_sidecar.features.delayed_messages.cancel.requests import CancelOptions, Target
from pulsar_sidecar.features.delayed_messages.ports import Configuration, LogRecords, Ports
from pulsar_sidecar.features.delayed_messages.results import MessageOutcome
from pulsar_sidecar.features.delayed_messages.workflow.service import DelayedDelivery
from pulsar_sidecar.model.errors import ConflictError, NotFoundError, OutcomeUnknownError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.lookups import Absent
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.model.topic_stats import (
    ConnectedConsumer,
    Cursor,
    Subscription,
    SubscriptionType,
    TopicInternalStats,
)
from pyroaring import BitMap

from tests.fakes.clock import FakeClock
from tests.fakes.metadata import FakeMetadataStore
from tests.fakes.positions import with_positions

TOPIC = parse_topic_name("persistent://public/default/orders")
LEDGER = LedgerId(7)
BEFORE_ALL = Position(LEDGER, EntryId(-1))


class CrashError(BaseException):
    """Raised to end the sidecar's process."""


FAULTS: dict[str, Callable[[], BaseException]] = {
    "crash": CrashError,
    "temporary": lambda: TemporaryError("for this test"),
    "unknown": lambda: OutcomeUnknownError("for this test"),
}


def at(entry: int, ledger_id: int = LEDGER) -> Position:
    return Position(LedgerId(ledger_id), EntryId(entry))


@dataclass(slots=True)
class FakeSubscription:
    """A subscription; ``delivered`` counts deliveries by position, consumers with ``keeps`` never acknowledge."""

    name: str
    type: SubscriptionType = SubscriptionType.SHARED
    consumers: int = 1
    sticky: bool = False
    keeps: bool = False
    durable: bool = True
    acked: set[Position] = field(default_factory=set)
    stored: set[Position] = field(default_factory=set)
    delivered: defaultdict[Position, int] = field(default_factory=lambda: defaultdict(int))
    by_sidecar: set[Position] = field(default_factory=set)
    out: set[Position] = field(default_factory=set)
    messages_out: int = 0
    connected: int = 0
    """Number of connections of its consumers."""
    stored_at_ms: int = -10_000

    @property
    def deliveries(self) -> dict[Position, int]:
        return {position: count for position, count in self.delivered.items() if count}


class FakeCluster:
    """A topic without partitions, and every port of cancelling.

    Each port call calls ``before`` and ``after`` with its name; both may raise.
    """

    calls = 0
    """Number of port calls so far."""

    def __init__(self, clock: FakeClock | None = None, policy: DelayPolicy | None = None) -> None:
        self.clock = clock or FakeClock()
        self.policy = policy or DelayPolicy()
        self.entries: dict[Position, EntryAnswer] = {}
        self.subscriptions_: dict[str, FakeSubscription] = {}
        self.replicated_to: tuple[str, ...] = ()
        """Remote clusters, whose replicators have cursors but no subscriptions."""
        self.records: list[tuple[str, bytes | None]] = []
        self.max_ranges = 10_000
        self.before: Callable[[str], None] = lambda call: None
        self.after: Callable[[str], None] = lambda call: None
        self.topic_exists = True
        self.dropped = False
        """True if the topic has dropped its ledger but the bookies still have it."""
        self.ahead_ms = 0
        self.store = FakeMetadataStore()
        self.ledger = LEDGER
        self.ruled_out: dict[LedgerId, BitMap] = {}
        """Due times in an index."""
        self._followers: list[Callable[[LogRecords], None]] = []

    # --- actions of tests ------------------------------------------------------------------------------------------

    def interrupt(
        self, wanted: str, does: Callable[[], object] | Exception, *, before: bool = False, each: bool = False
    ) -> None:
        """Do something, or fail, before or after the effect of the next such call, or of each one."""
        when = "before" if before else "after"

        def interfere(call: str) -> None:
            if call == wanted:
                if not each:
                    setattr(self, when, lambda call: None)
                if isinstance(does, Exception):
                    raise does
                does()

        setattr(self, when, interfere)

    def publish(self, count: int, due_in_ms: int | None = 60_000, **facts: object) -> list[Position]:
        now_ms = self.clock.now_ms()
        due_ms = None if due_in_ms is None else now_ms + due_in_ms
        first = self._length(self.ledger)
        positions = [at(first + index, self.ledger) for index in range(count)]
        for position in positions:
            found = EntryFacts(deliver_at_ms=due_ms, publish_time_ms=now_ms, producer_name="p")
            self.entries[position] = _with(found, facts)
        return positions

    def subscribe(self, name: str = "s", **options: object) -> FakeSubscription:
        subscription = FakeSubscription(name)
        for option, value in options.items():
            setattr(subscription, option, value)
        self.subscriptions_[name] = subscription
        return subscription

    def dispatch(self) -> None:
        """Deliver due messages, as early as the policy allows."""
        now_ms = self.clock.now_ms()
        for subscription in self.subscriptions_.values():
            if not subscription.consumers:
                continue
            for position, facts in self.entries.items():
                if not isinstance(facts, EntryFacts) or position in subscription.acked or position in subscription.out:
                    continue
                due_ms = facts.deliver_at_ms or 0
                if due_ms - (0 if self.policy.strict else self.policy.tick_ms) <= now_ms:
                    self._deliver(subscription, position)

    def pass_ms(self, milliseconds: int, step_ms: int = 250) -> None:
        for _ in range(0, milliseconds, step_ms):
            self.clock.advance_ms(step_ms)
            self.dispatch()

    def crash_broker(self) -> None:
        """Restart the broker with stored acknowledgements and a new ledger; it redelivers unacknowledged messages."""
        self.ledger = LedgerId(self.ledger + 1)
        for subscription in self.subscriptions_.values():
            subscription.acked = set(subscription.stored)
            subscription.out.clear()
            subscription.messages_out = 0
            subscription.connected += 1

    def unload(self) -> None:
        for subscription in self.subscriptions_.values():
            subscription.stored = set(subscription.acked)
        self.crash_broker()

    def lose_cursor(self, name: str) -> None:
        """Make the cursor's ledger unreadable, so that the cursor restarts from the beginning."""
        self.subscriptions_[name].stored = set()
        self.crash_broker()

    def seek(self, name: str) -> None:
        """Move the cursor to the beginning like an operator."""
        subscription = self.subscriptions_[name]
        subscription.acked, subscription.stored = set(), set()
        subscription.out.clear()
        subscription.connected += 1

    def _length(self, ledger_id: int) -> int:
        return sum(position.ledger_id == ledger_id for position in self.entries)

    def _deliver(self, subscription: FakeSubscription, position: Position) -> None:
        subscription.delivered[position] += 1
        subscription.messages_out += 1
        if subscription.keeps:
            subscription.out.add(position)
        else:
            subscription.acked.add(position)
            self._store(subscription)

    def _store(self, subscription: FakeSubscription) -> None:
        now_ms = self.clock.now_ms()
        if now_ms - subscription.stored_at_ms >= 1000:
            subscription.stored_at_ms = now_ms
            subscription.stored = set(sorted(subscription.acked)[: self.max_ranges * 10])

    @contextmanager
    def _call(self, name: str) -> Iterator[None]:
        self.calls += 1
        self.before(name)
        yield
        self.after(name)

    def _existing(self) -> None:
        if not self.topic_exists:
            raise NotFoundError(f"there is no topic {TOPIC}")

    # --- Topics ----------------------------------------------------------------------------------------------------

    def partitions(self, topic: TopicName, *, max_age_seconds: float = 0.0) -> int | None:
        with self._call("partitions"):
            return 0 if self.topic_exists and topic == TOPIC else None

    def partition_of_ledger(self, topic: TopicName, partitions: int, ledger_id: LedgerId) -> int | None:
        return None

    def subscriptions(self, topic: TopicName, *, max_age_seconds: float = 0.0) -> Mapping[str, Subscription]:
        with self._call("subscriptions"):
            self._existing()
            return {name: _facts(found) for name, found in self.subscriptions_.items()}

    def state(self, topic: TopicName) -> TopicInternalStats:
        with self._call("state"):
            self._existing()
            last = max(self.entries, default=BEFORE_ALL)
            cursors = {name: _cursor(found) for name, found in self.subscriptions_.items()}
            cursors |= {f"pulsar.repl.{name}": _cursor(FakeSubscription(name)) for name in self.replicated_to}
            ledgers = [LedgerId(ledger_id) for ledger_id in range(LEDGER, self.ledger + 1)]
            lengths = {one: self._length(one) for one in ledgers}
            return TopicInternalStats({} if self.dropped else lengths, last, cursors)

    def delay_policy(self, topic: TopicName) -> DelayPolicy:
        return self.policy

    def broker_ahead_ms(self) -> int:
        return self.ahead_ms

    # --- the other ports -------------------------------------------------------------------------------------------

    def read(
        self,
        topic: TopicName,
        positions: Collection[Position],
        *,
        max_age_seconds: float = 0.0,
        only_decisive: bool = False,
    ) -> Mapping[Position, EntryAnswer]:
        with self._call("entries"):
            self._existing()
            if self.dropped and not max_age_seconds:
                return dict.fromkeys(positions, Absent())
            return {position: self.entries.get(position, Absent()) for position in positions}

    def outside(self, topic: TopicName, from_ms: int | None, to_ms: int | None) -> Mapping[LedgerId, BitMap]:
        return self.ruled_out

    @contextmanager
    def join(self, topic: TopicName, subscription: Subscription) -> Iterator["FakeConsumer"]:
        with self._call("join"):
            self._existing()
            found = self.subscriptions_.get(subscription.name)
            if found is None:
                raise NotFoundError("no such subscription")
            if found.type not in (subscription.type, SubscriptionType.NONE):
                raise ConflictError("another type")
        yield FakeConsumer(self, found)

    def close(self) -> None:
        """Do nothing."""

    def republish(
        self, topic: TopicName, entries: Sequence[Position], deliver_at_ms: int | None, properties: Mapping[str, str]
    ) -> str:
        with self._call("republish"):
            old = self.entries[entries[0]]
            assert isinstance(old, EntryFacts)
            position = at(self._length(self.ledger), self.ledger)
            self.entries[position] = _with(
                old, {"deliver_at_ms": deliver_at_ms, "properties": {**old.properties, **properties}}
            )
            return f"{position}:-1"

    # --- the log ---------------------------------------------------------------------------------------------------

    def ensure(self) -> None:
        """Do nothing, because the log exists."""

    def append(self, records: Sequence[tuple[str, bytes | None]]) -> None:
        with self._call("append"):
            self.records += records
            for record in records:
                for apply in self._followers:
                    apply([record])

    def follow(
        self, apply: Callable[[LogRecords], None], caught_up: Callable[[int], None], stopped: Callable[[], bool]
    ) -> None:
        apply(list(self.records))
        self._followers.append(apply)
        caught_up(0)

    def unfollow(self, apply: Callable[[LogRecords], None]) -> None:
        """Break a follower's connection."""
        self._followers.remove(apply)

    def compact(self) -> None:
        """Compact the log to the newest record of each key, without empty ones."""
        self.records = list(self.compacted().items())

    def compacted(self) -> dict[str, bytes]:
        newest = dict(self.records)
        return {key: value for key, value in newest.items() if value is not None}


class FakeConsumer:
    """The sidecar's consumer on a subscription."""

    def __init__(self, cluster: FakeCluster, subscription: FakeSubscription) -> None:
        self._cluster = cluster
        self._subscription = subscription

    def acknowledge(self, positions: Sequence[Position]) -> int:
        found = self._subscription
        with self._cluster._call("acknowledge"):
            found.by_sidecar.update(set(positions) - found.acked)
            found.acked.update(positions)
            found.out.difference_update(positions)
            self._cluster._store(found)
        return self._cluster.clock.now_ms()


class FakeStored:
    """`StoredAckState` of the cluster, apart from other ports because its method is also called ``read``."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    def read(
        self, topic: TopicName, subscription: str, known_ledger: LedgerId | None, known_last_entry: int
    ) -> PositionRanges | None:
        with self._cluster._call("stored"):
            return _ranges(self._cluster.subscriptions_[subscription].stored)


class FakeCancelMetrics:
    """Metrics that count by name."""

    def __init__(self) -> None:
        self.counts: defaultdict[str, int] = defaultdict(int)

    def requested(self, count: int = 1) -> None:
        self.counts["requested"] += count

    def reached(self, status: str, seconds: float, count: int = 1) -> None:
        self.counts[status] += count

    def refused(self, cause: str, count: int = 1) -> None:
        self.counts[cause] += count

    def acknowledged_again(self, count: int = 1) -> None:
        self.counts["acknowledged_again"] += count

    def reconcile_failed(self) -> None:
        self.counts["reconcile_failed"] += 1

    def bind(self, open_cancellations: Callable[[], int], leading: Callable[[], bool] | None) -> None:
        """Ignore the gauges of open cancellations and leadership."""


class _AtOnce(Executor):
    """Executor that runs each task at once, so that calls have a fixed order."""

    def submit(self, function, /, *arguments, **more):  # type: ignore[no-untyped-def]
        future: Future[object] = Future()
        try:
            future.set_result(function(*arguments, **more))
        except (CrashError, SidecarError) as error:
            future.set_exception(error)
        return future


class FakeSidecar:
    """A sidecar's feature over the cluster, which reads the log at once and runs rounds on demand."""

    def __init__(self, cluster: FakeCluster, configuration: Configuration | None = None) -> None:
        self.cluster = cluster
        self.metrics = FakeCancelMetrics()
        ports = Ports(
            clock=cluster.clock,
            metadata=cluster.store,
            topics=cluster,
            entries=cluster,
            due_times=cluster,
            max_ranges=lambda: cluster.max_ranges,
            acknowledger=cluster,
            stored=FakeStored(cluster),
            log=cluster,
            republisher=cluster,
        )
        self.feature = DelayedDelivery(configuration or Configuration(), ports, "sidecar", self.metrics)
        self.feature._canceller._readers = _AtOnce()  # type: ignore[assignment]
        self.follow()

    def follow(self) -> None:
        """Read the log from its beginning and stay connected."""
        store = self.feature._store
        store.begin_following()
        self.cluster.follow(store.apply, store.note_caught_up, lambda: False)

    def disconnect(self) -> None:
        """Lose the connection to the log."""
        self.cluster.unfollow(self.feature._store.apply)
        self.feature._store.follows = False

    def cancel(self, *entries: int, due: bool = True, **options: bool) -> list[MessageOutcome]:
        return self.cancel_at([at(entry) for entry in entries], due=due, **options)

    def cancel_at(
        self, positions: Sequence[Position], subscriptions: tuple[str, ...] = (), *, due: bool = True, **options: bool
    ) -> list[MessageOutcome]:
        targets = [
            Target(position, self._due(position) if due else None, None, subscriptions) for position in positions
        ]
        return self.feature.cancel(TOPIC, targets, CancelOptions(**options))

    def round(self) -> None:
        """Run one round of every due task."""
        self.feature._reconciler.round()
        self.feature._rescheduler.round()

    def live(self, milliseconds: int, step_ms: int = 250) -> None:
        """Advance the time, with rounds and deliveries."""
        for _ in range(0, milliseconds, step_ms):
            self.cluster.pass_ms(step_ms, step_ms)
            self.round()

    def close(self) -> None:
        self.feature.close()

    def _due(self, position: Position) -> int | None:
        facts = self.cluster.entries.get(position)
        return facts.deliver_at_ms if isinstance(facts, EntryFacts) else self.cluster.clock.now_ms() + 1


def _facts(found: FakeSubscription) -> Subscription:
    return Subscription(
        found.name,
        found.type,
        tuple(
            ConnectedConsumer(f"consumer-{number}", "client", str(found.connected)) for number in range(found.consumers)
        ),
        found.messages_out,
        sticky=found.sticky,
        durable=found.durable,
    )


def _cursor(found: FakeSubscription) -> Cursor:
    acknowledged = _ranges(found.acked)
    return Cursor(acknowledged, acknowledged.range_count, at(0), LedgerId(99), EntryId(len(found.stored)))


def _ranges(acked: Collection[Position]) -> PositionRanges:
    return with_positions(PositionRanges(BEFORE_ALL), acked)


def _with(facts: EntryFacts, changes: Mapping[str, object]) -> EntryFacts:
    return facts._replace(**changes)  # type: ignore[arg-type]
