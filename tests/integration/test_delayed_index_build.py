"""Buckets written by the sidecar, recovered by real brokers, and the other way round (PIP-195)."""

import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.maintenance.build import BuildPlan
from pulsar_sidecar.features.delayed_index.results.maintenance import PointerOutcome
from pulsar_sidecar.features.delayed_index.settings import TrackerSettings
from pulsar_sidecar.features.delayed_index.snapshot import segment_metadata_of
from pulsar_sidecar.features.delayed_index.stored import StoredIndex, StoredTopic
from pulsar_sidecar.features.delayed_index.tracker.memory_storage import MemoryBucketProperties
from pulsar_sidecar.features.delayed_index.tracker.tracker import BucketDelayedDeliveryTracker
from pulsar_sidecar.model.errors import ConflictError, SidecarError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.ownership.claims import BucketClaim, read_claim
from pulsar_sidecar.ownership.paths import ledger_path

from tests.cluster.buckets import BUCKETS
from tests.cluster.delays import SHARED, DelayedTopic, Deliveries, await_rest, before_due, now_ms
from tests.cluster.index_building import IndexBuilding
from tests.cluster.patience import until
from tests.cluster.plugin import ClusterFactory
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import Sidecars
from tests.cluster.topics import unique
from tests.fakes.clock import FakeClock

SMALL_BUCKETS = {
    **BUCKETS,
    "delayedDeliveryMinIndexCountPerBucket": "20",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "7",
    "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds": "5",
    "managedLedgerMaxEntriesPerLedger": "10",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
SUBSCRIPTION = "a b/ü"
FAR_MS = 3_600_000
RACES = 6


class Setup:
    def __init__(self, cluster: ClusterUnderTest, stack: ExitStack) -> None:
        self.cluster = cluster
        building = IndexBuilding(cluster, stack)
        self.bookkeeper, self.stored = building.bookkeeper, building.stored
        self.storage, self.builder = building.storage, building.builder
        self.trackers = building.trackers

    def topic(self, stack: ExitStack) -> DelayedTopic:
        topic = DelayedTopic(self.cluster.addresses, parse_topic_name(f"build-{unique()}"))
        stack.callback(topic.close)
        return topic

    def index(self, topic: TopicName) -> StoredIndex:
        [(_, found)] = self.stored.read([topic], SUBSCRIPTION)
        assert isinstance(found, StoredTopic)
        index = found.subscriptions[SUBSCRIPTION]
        assert isinstance(index, StoredIndex)
        return index

    def indexed(self, topic: TopicName) -> dict[Position, int]:
        """Return every message that a bucket holds, with its due time, read through the storage."""
        held: dict[Position, int] = {}
        for bucket in self.index(topic).buckets:
            metadata = self.storage.get_bucket_snapshot_metadata(bucket.ledger_id)
            segments = self.storage.get_bucket_snapshot_segment(bucket.ledger_id, 1, len(metadata))
            assert metadata == tuple(map(segment_metadata_of, segments))
            for segment in segments:
                held.update(zip(segment.positions(), segment.deliver_at_ms.tolist(), strict=True))
        return held

    def build(self, topic: TopicName) -> BuildPlan:
        plan = self.builder.plan(topic, SUBSCRIPTION)
        built = self.builder.execute(topic, SUBSCRIPTION, plan.hash)
        assert [one.outcome for one in built] == [PointerOutcome.DONE]
        return plan

    def outcome(self, topic: TopicName, plan: BuildPlan) -> PointerOutcome | SidecarError:
        try:
            [built] = self.builder.execute(topic, SUBSCRIPTION, plan.hash)
        except SidecarError as error:
            return error
        return built.outcome

    def recoveries(self, topic: TopicName) -> list[tuple[int, int]]:
        """Return the buckets and messages of each recovery of the topic's subscription that brokers logged."""
        logged = "\n".join(
            self.cluster.log(name, 20_000) for name in self.cluster.addresses.members if name.startswith("broker-")
        )
        line = rf"{re.escape(topic.local_name)}.*Recover.*finish, buckets: (\d+), numberDelayedMessages: (\d+)"
        return [(int(buckets), int(messages)) for buckets, messages in re.findall(line, logged)]


@pytest.fixture(scope="module")
def setup(special_cluster: ClusterFactory) -> Iterator[Setup]:
    with special_cluster(brokers=2, bookies=2, broker_conf=SMALL_BUCKETS) as cluster, ExitStack() as stack:
        yield Setup(cluster, stack)


@pytest.fixture
def topic(setup: Setup) -> Iterator[DelayedTopic]:
    with ExitStack() as stack:
        yield setup.topic(stack)


def positions(topic: DelayedTopic) -> dict[tuple[int, int], int]:
    return {(sent.ledger_id, sent.entry_id): sent.deliver_at for sent in topic.sent}


def test_a_broker_recovers_what_was_built_and_delivers_each_message_as_due(setup: Setup) -> None:
    with ExitStack() as stack:

        def built_before(first: int) -> tuple[DelayedTopic, int]:
            topic = setup.topic(stack)
            topic.subscribe(SUBSCRIPTION, SHARED)
            topic.send(95, [first + 50 * (number * 7 % 95) for number in range(95)])
            topic.unload()
            [build] = setup.build(topic.topic).subscriptions
            assert len(build.buckets) >= 4
            assert setup.indexed(topic.topic) == positions(topic)
            return topic, len(build.buckets)

        topic, buckets = before_due(built_before)
        with topic.consuming(SUBSCRIPTION, SHARED) as deliveries:
            until(lambda: bool(setup.recoveries(topic.topic)), "a broker recovers the buckets")
            assert setup.recoveries(topic.topic) == [(buckets, 95)]
            await_rest(deliveries, set(range(95)), max(sent.deliver_at for sent in topic.sent))
            assert deliveries.repeated == {}
            early = [sent.number for sent in topic.sent if deliveries.times[sent.number][0] < sent.deliver_at - 1_100]
            assert early == []
        until(lambda: topic.backlogs()[SUBSCRIPTION] == 0, "everything is acknowledged")


def test_brokers_buckets_are_readable_and_built_ones_claim_the_same(setup: Setup, topic: DelayedTopic) -> None:
    topic.subscribe(SUBSCRIPTION, SHARED)
    with topic.consuming(SUBSCRIPTION, SHARED):
        topic.send(95, now_ms() + FAR_MS)
        until(lambda: len(setup.index(topic.topic).buckets) >= 3, "the broker seals buckets")
    topic.unload()
    written = setup.indexed(topic.topic)
    assert written.items() <= positions(topic).items()
    theirs = setup.index(topic.topic).buckets
    setup.build(topic.topic)
    assert setup.indexed(topic.topic) == positions(topic)
    index = setup.index(topic.topic)
    assert {bucket.ledger_id for bucket in theirs} < {bucket.ledger_id for bucket in index.buckets}
    shapes = set()
    for bucket in index.buckets:
        metadata = setup.bookkeeper.metadata(bucket.ledger_id)
        assert read_claim(metadata.custom_metadata) == BucketClaim(topic.topic, SUBSCRIPTION, bucket.name)
        assert isinstance(bucket.key, BucketKey)
        sizes = (metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
        shapes.add((sizes, metadata.digest_type, metadata.state, frozenset(metadata.custom_metadata)))
    assert len(shapes) == 1, "ours look like theirs"
    with topic.consuming(SUBSCRIPTION, SHARED):
        until(lambda: (len(index.buckets), 95) in setup.recoveries(topic.topic), "a broker recovers both kinds")
    topic.unload()
    assert recovered_by_us(setup, index) == set(positions(topic))


def recovered_by_us(setup: Setup, index: StoredIndex) -> set[tuple[int, int]]:
    """Return the messages that our tracker delivers from these buckets once due, deleting them as brokers do."""
    clock = FakeClock(now_ms())
    properties = MemoryBucketProperties({bucket.name: str(bucket.ledger_id) for bucket in index.buckets})
    tracker = BucketDelayedDeliveryTracker(
        setup.trackers.trackers().popitem()[1].settings,
        setup.storage,
        properties,
        clock.now_ms,
        topic_name=str(index.topic),
        cursor_name=index.subscription,
    )
    count = tracker.recover()
    assert len(tracker.buckets) == len(index.buckets)
    clock.advance_ms(2 * FAR_MS)
    handed_out = tracker.get_scheduled_messages(2 * count)
    assert (len(handed_out), tracker.number_of_delayed_messages, properties.properties) == (count, 0, {})
    nodes = setup.bookkeeper.store.read_many([ledger_path(bucket.ledger_id) for bucket in index.buckets])
    assert not any(nodes)
    return set(handed_out)


def test_acknowledged_messages_and_other_kinds_get_no_bit(setup: Setup, topic: DelayedTopic) -> None:
    topic.subscribe(SUBSCRIPTION, SHARED)
    with topic.consuming(SUBSCRIPTION, SHARED) as deliveries:
        topic.send(30, now_ms() - 1)
        until(lambda: len(deliveries.numbers) == 30, "what is due is consumed")
    until(lambda: topic.backlogs()[SUBSCRIPTION] == 0, "and acknowledged")
    late = topic.send(25, now_ms() + FAR_MS)
    topic.unload()
    setup.build(topic.topic)
    assert setup.indexed(topic.topic) == {(sent.ledger_id, sent.entry_id): sent.deliver_at for sent in late}


def test_a_loaded_topic_and_an_old_plan_are_refused(setup: Setup, topic: DelayedTopic) -> None:
    topic.subscribe(SUBSCRIPTION, SHARED)
    topic.send(30, now_ms() + FAR_MS)
    with pytest.raises(ConflictError, match="loaded"):
        setup.builder.plan(topic.topic, SUBSCRIPTION)
    topic.unload()
    plan = setup.builder.plan(topic.topic, SUBSCRIPTION)
    assert setup.builder.plan(topic.topic, SUBSCRIPTION).hash == plan.hash
    topic.send(1, now_ms() + FAR_MS)
    with pytest.raises(ConflictError, match="loaded"):
        setup.builder.execute(topic.topic, SUBSCRIPTION, plan.hash)
    topic.unload()
    with pytest.raises(ConflictError, match="approved"):
        setup.builder.execute(topic.topic, SUBSCRIPTION, plan.hash)
    assert setup.index(topic.topic).buckets == ()


def test_clients_that_load_the_topic_at_the_same_moment_lose_no_message(setup: Setup) -> None:
    with ExitStack() as stack:
        raced = before_due(lambda first: race(setup, stack, first))
        for topic, deliveries, _ in raced:
            await_rest(deliveries, set(range(45)), topic.sent[-1].deliver_at)
            early = [one.number for one in topic.sent if deliveries.times[one.number][0] < one.deliver_at - 1_100]
            assert early == [], raced
        assert any(outcome is not PointerOutcome.DONE for _, _, outcome in raced), "some of them lost the race"


def race(
    setup: Setup, stack: ExitStack, first: int
) -> Sequence[tuple[DelayedTopic, Deliveries, PointerOutcome | SidecarError]]:
    """Build topics' indexes while a client loads them, and return its deliveries and the outcomes."""
    topics = [setup.topic(stack) for _ in range(RACES)]
    for topic in topics:
        topic.subscribe(SUBSCRIPTION, SHARED)
        topic.send(45, [first + 100 * number for number in range(45)])
        topic.unload()
    plans = [setup.builder.plan(topic.topic, SUBSCRIPTION) for topic in topics]
    with ThreadPoolExecutor(RACES) as threads:
        pairs = zip(topics, plans, strict=True)
        building = [threads.submit(setup.outcome, topic.topic, plan) for topic, plan in pairs]
        taken = []
        for topic in topics:
            taken.append(stack.enter_context(topic.consuming(SUBSCRIPTION, SHARED, consumers=1)))
            time.sleep(0.3)
        return list(zip(topics, taken, [each.result() for each in building], strict=True))


def test_the_service_builds_over_rest(setup: Setup, topic: DelayedTopic, tmp_path: Path) -> None:
    topic.subscribe(SUBSCRIPTION, SHARED)
    topic.send(45, now_ms() + FAR_MS)
    topic.unload()
    sidecars = Sidecars(setup.cluster.addresses, tmp_path)
    try:
        sidecar = sidecars.start_with_defaults()
        path = f"{topic.path}/delayedIndex/build"
        planned = sidecar.request("POST", path, None).json()
        assert not planned["executed"]
        built = sidecar.request("POST", path, None, plan=planned["plan"]).json()
    finally:
        sidecars.close()
    [subscription] = built["subscriptions"]
    assert (built["executed"], subscription["outcome"]) == (True, PointerOutcome.DONE.value)
    assert sum(bucket["indexes"] for bucket in subscription["buckets"]) == 45
    assert setup.indexed(topic.topic) == positions(topic)


def test_brokers_without_the_bucket_tracker_are_refused(cluster: ClusterUnderTest) -> None:
    with ExitStack() as stack:
        setup = Setup(cluster, stack)
        topic = setup.topic(stack)
        topic.subscribe(SUBSCRIPTION, SHARED)
        topic.unload()
        assert {each.settings for each in setup.trackers.trackers().values()} == {TrackerSettings()}, "the defaults"
        with pytest.raises(ConflictError, match=r"InMemoryDelayedDeliveryTrackerFactory.*set delayedDelivery"):
            setup.builder.plan(topic.topic)
