"""Unloaded topics past their retention: what a sweep finds, what it leaves, and its price."""

from collections.abc import Iterator

import pytest
from pulsar_sidecar.features.pins.facts import Retention
from pulsar_sidecar.features.pins.obstacles import LoadingPolicies
from pulsar_sidecar.features.pins.ports import BrokerUsage
from pulsar_sidecar.features.pins.results import Obstacle, TrimmedTopic, TrimState, UnloadedTopics
from pulsar_sidecar.features.pins.sweep_plan import plan_of
from pulsar_sidecar.model.errors import InvalidInputError, NotFoundError, OutcomeUnknownError, TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.model.topic_stats import TopicInternalStats
from pulsar_sidecar.ownership.paths import managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE

from tests.fakes.pins import TOPIC, PinnedCluster

OTHER = parse_topic_name("other/ns/bills")
VIEW = TopicInternalStats({}, Position(LedgerId(-1), EntryId(-1)))


@pytest.fixture
def cluster() -> PinnedCluster:
    """Return a cluster with one unloaded topic of three ledgers, of which a subscription has acknowledged two."""
    cluster = PinnedCluster()
    cluster.topic(1, 2, 3)
    cluster.cursor("s", mark_delete=(2, 9))
    return cluster


def found(cluster: PinnedCluster) -> UnloadedTopics:
    return cluster.sweep.find(None, None, 100)


def test_what_a_subscription_has_acknowledged_is_found_and_what_it_needs_is_not(cluster: PinnedCluster) -> None:
    page = found(cluster)
    (topic,) = page.topics
    assert (topic.topic, topic.ledger_ids, topic.bytes, topic.on_bookies_bytes) == (str(TOPIC), (1, 2), 2_000, 4_000)
    assert (topic.obstacle, page.examined, page.loaded, page.after) == (None, 1, 0, None)


def test_a_loaded_topic_is_left_to_its_broker(cluster: PinnedCluster) -> None:
    cluster.owners.load(TOPIC, VIEW)
    page = found(cluster)
    assert (page.topics, page.examined, page.loaded) == ((), 1, 1)
    assert not cluster.owners.asked, "no broker was asked for its views"


def test_what_retention_covers_or_nobody_can_read_is_not_found(cluster: PinnedCluster) -> None:
    for retention in (Retention(-1, -1), Unreadable("no answer")):
        cluster.policies.found = retention
        assert not found(cluster).topics


def test_shadows_and_brokers_own_topics_are_not_found() -> None:
    cluster = PinnedCluster()
    cluster.topic(1, properties={SHADOW_SOURCE: str(OTHER)})
    for name in ("public/default/__change_events", "pulsar/system/__ledger_deletion-partition-0"):
        cluster.topic(2, topic=parse_topic_name(name))
    page = found(cluster)
    assert (page.topics, page.examined) == ((), 1)


def test_a_list_that_cannot_be_read_is_named_and_the_rest_is_answered(cluster: PinnedCluster) -> None:
    cluster.store.put(managed_ledger_path(OTHER.managed_ledger_name), b"broken")
    page = found(cluster)
    assert page.unreadable == (str(OTHER),)
    assert [topic.topic for topic in page.topics] == [str(TOPIC)]


@pytest.mark.parametrize(
    ("policies", "acknowledged", "obstacle"),
    [
        (Unreadable("no answer"), (3, 9), Obstacle.UNREADABLE_POLICIES),
        (LoadingPolicies(is_being_deleted=True), (3, 9), Obstacle.BEING_DELETED),
        (LoadingPolicies(is_shadow=True), (3, 9), Obstacle.SHADOW),
        (LoadingPolicies(is_of_this_cluster=False), (3, 9), Obstacle.OTHER_CLUSTERS),
        (LoadingPolicies(deletes_inactive=True), (3, 9), None),
        (LoadingPolicies(deletes_inactive=True), None, Obstacle.INACTIVE),
        (LoadingPolicies(deletes_inactive=True, spares_subscriptions=False), (3, 9), Obstacle.INACTIVE),
        (LoadingPolicies(subscription_expiry_minutes=5), (3, 9), Obstacle.SUBSCRIPTIONS_EXPIRE),
        (LoadingPolicies(subscription_expiry_minutes=5), None, None),
        (LoadingPolicies(message_ttl_seconds=5), (2, 9), Obstacle.MESSAGES_EXPIRE),
        (LoadingPolicies(message_ttl_seconds=5), (3, 9), None),
        (LoadingPolicies(evicts_backlog=True), (2, 9), Obstacle.MESSAGES_EXPIRE),
        (LoadingPolicies(evicts_backlog=True), None, None),
    ],
)
def test_a_topic_whose_loading_may_do_more_than_trim_it_is_left(
    policies: LoadingPolicies | Unreadable, acknowledged: tuple[int, int] | None, obstacle: Obstacle | None
) -> None:
    cluster = PinnedCluster()
    cluster.policies.loading = policies
    cluster.topic(1, 2, 3)
    cluster.cursor("pulsar.dedup", mark_delete=(3, 9))
    if acknowledged is not None:
        cluster.cursor("s", mark_delete=acknowledged)
    (topic,) = found(cluster).topics
    assert topic.obstacle is obstacle
    assert (topic.detail == "") == (obstacle is None)


def test_no_policy_is_asked_for_where_the_answer_would_load_a_bundle(cluster: PinnedCluster) -> None:
    cluster.own("public/default", url=None)
    (topic,) = found(cluster).topics
    assert (topic.obstacle, topic.ledger_ids) == (Obstacle.UNOWNED_BUNDLE, (1, 2))
    assert "pulsar-admin topics lookup persistent://public/default/__change_events" in topic.detail
    assert cluster.sweep.trim(TOPIC, 70).state is TrimState.OBSTACLE
    assert not cluster.policies.asked


def pages(cluster: PinnedCluster, scope: str | None) -> Iterator[UnloadedTopics]:
    page = cluster.sweep.find(scope, None, 1)
    yield page
    while page.after is not None:
        page = cluster.sweep.find(scope, page.after, 1)
        yield page


def test_the_plan_has_owners_and_prices(cluster: PinnedCluster) -> None:
    cluster.topic(7, topic=OTHER)
    plan = plan_of(list(pages(cluster, None)), 1_000_000.0)
    assert [(each.name, each.on_bookies_bytes, each.price_per_month) for each in plan.tenants] == [
        ("public", 4_000, 4.0),
        ("other", 2_000, 2.0),
    ]
    assert [each.name for each in plan.namespaces] == ["public/default", "other/ns"]
    assert (plan.freed.topics, plan.freed.ledgers, plan.freed.price_per_month) == (2, 3, 6.0)
    cluster.policies.loading = LoadingPolicies(is_of_this_cluster=False)
    plan = plan_of(list(pages(cluster, "public/default")), None)
    assert (plan.freed.topics, plan.tenants) == (0, ())
    assert [(each.name, each.topics, each.price_per_month) for each in plan.left] == [("other-clusters", 1, None)]


def test_scopes(cluster: PinnedCluster) -> None:
    assert [topic.topic for topic in cluster.sweep.find(TOPIC, None, 100).topics] == [str(TOPIC)]
    for missing in (OTHER, "no/such", "none"):
        with pytest.raises(NotFoundError):
            cluster.sweep.find(missing, None, 100)


# --- trimming ------------------------------------------------------------------------------------------------------

MARKS = "/pulsar-sidecar/retention-sweep"


def marks(cluster: PinnedCluster) -> list[str]:
    return cluster.store.children(MARKS) or []


def test_a_topic_is_loaded_trimmed_and_unloaded_once(cluster: PinnedCluster) -> None:
    cluster.brokers.deletes[TOPIC] = (1, 2)
    cluster.brokers.hooks.before("trim", lambda: seen.extend(marks(cluster)))
    seen: list[str] = []
    done = cluster.sweep.trim(TOPIC, 70)
    assert done == TrimmedTopic(str(TOPIC), TrimState.TRIMMED, "", 2, 2_000, 4_000)
    assert not cluster.owners.loaded([TOPIC])
    assert (sorted(seen), marks(cluster)) == (["lease", "loaded"], [])
    assert cluster.sweep.trim(TOPIC, 70).state is TrimState.NOTHING_LEFT
    assert cluster.brokers.trimmed == [TOPIC]


@pytest.mark.parametrize(
    "state", [TrimState.LOADED, TrimState.OBSTACLE, TrimState.BROKERS_BUSY, TrimState.NOTHING_LEFT]
)
def test_a_topic_that_must_not_be_loaded_is_not(cluster: PinnedCluster, state: TrimState) -> None:
    match state:
        case TrimState.LOADED:
            cluster.owners.load(TOPIC, VIEW)
        case TrimState.OBSTACLE:
            cluster.policies.loading = LoadingPolicies(subscription_expiry_minutes=5)
        case TrimState.BROKERS_BUSY:
            cluster.brokers.usage = BrokerUsage("broker-1", "CPU", 71.0)
        case _:
            cluster.policies.found = Retention(-1, -1)
    done = cluster.sweep.trim(TOPIC, 70)
    assert (done.state, done.ledgers) == (state, 0)
    assert done.detail
    assert not cluster.brokers.trimmed
    assert not marks(cluster)


def test_ledgers_that_the_broker_does_not_delete_are_not_counted(cluster: PinnedCluster) -> None:
    cluster.brokers.deletes[TOPIC] = (1,)
    done = cluster.sweep.trim(TOPIC, 70)
    assert (done.state, done.ledgers, done.bytes) == (TrimState.UNFINISHED, 1, 1_000)
    assert done.detail == "1 ledger not deleted in 30 s"
    assert not cluster.owners.loaded([TOPIC])


def test_a_topic_stays_loaded_for_clients_that_connected_meanwhile(cluster: PinnedCluster) -> None:
    cluster.brokers.deletes[TOPIC], cluster.brokers.connected[TOPIC] = (1, 2), 1
    assert "stays loaded" in cluster.sweep.trim(TOPIC, 70).detail
    assert cluster.owners.loaded([TOPIC])
    assert not marks(cluster)


@pytest.mark.parametrize("step", ["trim", "unload"])
def test_the_next_trim_unloads_what_a_failed_one_left_loaded(cluster: PinnedCluster, step: str) -> None:
    cluster.topic(7, topic=OTHER)
    cluster.brokers.deletes = {TOPIC: (1, 2), OTHER: (7,)}
    cluster.brokers.hooks.fail_next(step, OutcomeUnknownError("no answer"))
    with pytest.raises(OutcomeUnknownError):
        cluster.sweep.trim(TOPIC, 70)
    assert marks(cluster) == ["loaded"]
    assert cluster.sweep.trim(OTHER, 70).state is TrimState.TRIMMED
    assert not cluster.owners.loaded([TOPIC, OTHER])
    expected = TrimState.TRIMMED if step == "trim" else TrimState.NOTHING_LEFT
    assert cluster.sweep.trim(TOPIC, 70).state is expected


def test_one_trim_at_a_time(cluster: PinnedCluster) -> None:
    cluster.store.create(f"{MARKS}/lease", b"", ephemeral=True)
    with pytest.raises(TemporaryError, match="another sweep"):
        cluster.sweep.trim(TOPIC, 70)
    assert marks(cluster) == ["lease"]


@pytest.mark.parametrize("name", ["public/default/__change_events", "public/default/parted"])
def test_brokers_own_topics_and_whole_partitioned_ones_are_refused(cluster: PinnedCluster, name: str) -> None:
    topic = parse_topic_name(name)
    cluster.store.put(partitioned_topic_path(topic), b'{"partitions": 2}')
    with pytest.raises(InvalidInputError):
        cluster.sweep.trim(topic, 70)
