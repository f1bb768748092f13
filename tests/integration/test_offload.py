"""What a real broker offloads is located, recognised and deleted, and the managed ledger's list stays as it was."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import requests
from pulsar_sidecar.adapters.metadata.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.adapters.offload.object_stores import credentials_from_environment
from pulsar_sidecar.adapters.offload.offloaded_ledgers import ObjectStoreOffloadedLedgers
from pulsar_sidecar.audit.results.tables import Table
from pulsar_sidecar.bootstrap.stored_messages import verify_stored
from pulsar_sidecar.deduplication.verifying.requests import StoredMessagesRequest, VerifyRequest
from pulsar_sidecar.deduplication.verifying.verify import TopicResult
from pulsar_sidecar.ledger_deletion.ports import OffloadDeletion
from pulsar_sidecar.ledger_ownership.references import managed_ledger_references
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import PermanentError
from pulsar_sidecar.model.ids import EntryId, LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext, UnseenCause
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.wire.MLDataFormats_pb2 import ManagedLedgerInfo

from tests.cluster.audits import Audits, demand_unused
from tests.cluster.broker_view import BrokerView
from tests.cluster.clients import PatientClient
from tests.cluster.offload_leaks import KEYS, Copy, OffloadingTopics, offloading_to, watching
from tests.cluster.offloading import offload_closed_ledgers, offload_to_directory, topic_url
from tests.cluster.patience import until
from tests.cluster.plugin import ClusterFactory
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import BASE, SidecarProcess, Sidecars
from tests.cluster.topics import Workload, unique
from tests.contract.offload_storages import BUCKET, DirectoryStorage, Refusals, S3Storage, s3_server

ENTRIES_PER_LEDGER = 5
CLOSED_LEDGERS = 2
_CLOCK = SystemClock()
_POLL_SECONDS = 0.1


@pytest.fixture(scope="module")
def refusals() -> Refusals:
    return Refusals()


@pytest.fixture(scope="module")
def bucket(refusals: Refusals) -> Iterator[S3Storage]:
    with s3_server(refusals) as endpoint:
        yield S3Storage(endpoint)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> DirectoryStorage:
    return DirectoryStorage(tmp_path_factory.mktemp("offload") / "base")


@pytest.fixture(scope="module")
def offloading_cluster(special_cluster: ClusterFactory, bucket: S3Storage) -> Iterator[ClusterUnderTest]:
    """Offloads to the bucket, unless a namespace's policy sets otherwise."""
    with offloading_to(bucket, special_cluster, ENTRIES_PER_LEDGER) as cluster:
        yield cluster


def offloaded(cluster: ClusterUnderTest, topic: TopicName) -> dict[LedgerId, OffloadContext]:
    """Fill ledgers of a new topic and have the broker offload those that are closed."""
    fill(cluster, topic)
    offload_closed_ledgers(cluster, topic)
    return contexts(cluster, topic)


def fill(cluster: ClusterUnderTest, topic: TopicName) -> None:
    client = PatientClient(cluster.addresses)
    try:
        client.subscribe(str(topic), "keeps-everything").close()
        producer = client.create_producer(str(topic), batching_enabled=False)
        for number in range(CLOSED_LEDGERS * ENTRIES_PER_LEDGER + 1):
            producer.send(b"%d" % number)
    finally:
        client.close()


def contexts(cluster: ClusterUnderTest, topic: TopicName) -> dict[LedgerId, OffloadContext]:
    """What the topic's managed ledger holds of offloaded ledgers, read from the metadata store."""
    with ZooKeeperMetadataStore(cluster.addresses.metadata_store_url, _CLOCK) as store:
        node = store.read(f"/managed-ledgers/{topic.managed_ledger_name}")
    assert node is not None
    ledgers = managed_ledger_references(node.data).ledgers.items()
    return {ledger_id: reference.offload for ledger_id, reference in ledgers if reference.offload is not None}


def test_a_copy_in_a_bucket(offloading_cluster: ClusterUnderTest, bucket: S3Storage) -> None:
    topic = parse_topic_name(f"persistent://public/default/orders:v1=x-{unique()}")
    name = topic.managed_ledger_name
    found = offloaded(offloading_cluster, topic)
    (first, context), (second, kept) = sorted(found.items())
    endpoint = context.driver_metadata["serviceEndpoint"]
    assert bucket.context(context.uid_msb, context.uid_lsb) == context
    assert bucket.parts(first, context, name) == {"data", "index"}
    allowed, credentials = [f"s3://{BUCKET}@{endpoint}"], credentials_from_environment(KEYS)
    ours = ObjectStoreOffloadedLedgers(allowed, offloading_cluster.addresses.cluster_name, credentials)
    others = ObjectStoreOffloadedLedgers(allowed, "another", credentials)

    with pytest.raises(PermanentError, match="pulsarclustername"):
        others.delete_offloaded(first, context, name)
    with pytest.raises(PermanentError, match="pulsarclustername"):
        others.is_whole(first, context, name)
    with pytest.raises(PermanentError, match="managedledgername"):
        ours.delete_offloaded(first, context, parse_topic_name("invoices").managed_ledger_name)
    assert bucket.parts(first, context, name) == {"data", "index"}
    assert ours.is_whole(first, context, name)

    assert ours.delete_offloaded(first, context, name) is OffloadDeletion.DELETED
    assert bucket.parts(first, context, name) == set()
    assert bucket.parts(second, kept, name) == {"data", "index"}
    assert ours.delete_offloaded(first, context, name) is OffloadDeletion.GONE
    assert contexts(offloading_cluster, topic) == found


def test_a_copy_in_a_directory(
    offloading_cluster: ClusterUnderTest, directory: DirectoryStorage, tmp_path: Path
) -> None:
    base = directory.context(1, 2).driver_metadata["storageBasePath"]
    namespace = offload_to_directory(offloading_cluster, base, tmp_path / "profile.xml")
    topic = parse_topic_name(f"persistent://{namespace}/orders:v1=x")
    name = topic.managed_ledger_name
    found = offloaded(offloading_cluster, topic)
    (first, context), (second, kept) = sorted(found.items())
    assert directory.context(context.uid_msb, context.uid_lsb) == context
    assert directory.parts(first, context, name) == {"data", "index"}
    assert directory.ledgers.is_whole(first, context, name)

    assert directory.ledgers.delete_offloaded(first, context, name) is OffloadDeletion.DELETED
    assert directory.parts(first, context, name) == set()
    assert directory.parts(second, kept, name) == {"data", "index"}
    assert not list(Path(base.removeprefix("file:")).rglob(f"{first}-*"))
    assert directory.ledgers.delete_offloaded(first, context, name) is OffloadDeletion.GONE
    assert contexts(offloading_cluster, topic) == found


def test_an_audit_of_offloaded_topics(
    offloading_cluster: ClusterUnderTest, directory: DirectoryStorage, tmp_path: Path
) -> None:
    """A ledger in both places is in use; one whose copy in BookKeeper is gone is not missing; all of it still reads."""
    base = directory.context(1, 2).driver_metadata["storageBasePath"]
    at_once = {"managedLedgerOffloadDeletionLagInMillis": 0}
    namespaces = ("public/default", offload_to_directory(offloading_cluster, base, tmp_path / "profile.xml", at_once))
    both, moved = (parse_topic_name(f"persistent://{namespace}/audited-{unique()}") for namespace in namespaces)
    kept = offloaded(offloading_cluster, both)
    replaced = offloaded(offloading_cluster, moved)
    until(lambda: copies_deleted(offloading_cluster, moved), "the copies in BookKeeper are gone")
    with closing(Workload(offloading_cluster)) as workload, closing(BrokerView(offloading_cluster.addresses)) as view:
        audits = Audits(offloading_cluster.addresses, tmp_path)
        audits.look()
        audits.wait_between_looks()
        in_use = {ledger_id: whose for ledger_id, whose in view.references().items() if ledger_id not in replaced}
        look = audits.look()
        demand_unused(look, look.deletable, in_use)
        existing = view.existing()
        assert kept.keys() <= existing
        assert not replaced.keys() & existing
        assert not [row for row in look.missing if row["ledger_id"] in replaced]
        numbers = [b"%d" % number for number in range(CLOSED_LEDGERS * ENTRIES_PER_LEDGER + 1)]
        assert workload.read_all(both) == workload.read_all(moved) == numbers
    used = {row["topic"]: row["ledgers"] for row in look.rows(Table.LEDGER_USAGE) if row["kind"] == "data"}
    assert (used[str(both)], used[str(moved)]) == (CLOSED_LEDGERS + 1, 1)


def test_what_is_in_tiered_storage_alone_is_never_verified_as_clean(
    offloading_cluster: ClusterUnderTest, directory: DirectoryStorage, tmp_path: Path
) -> None:
    base = directory.context(1, 2).driver_metadata["storageBasePath"]
    at_once = {"managedLedgerOffloadDeletionLagInMillis": 0}
    namespaces = ("public/default", offload_to_directory(offloading_cluster, base, tmp_path / "profile.xml", at_once))
    both, moved = (parse_topic_name(f"persistent://{namespace}/verified-{unique()}") for namespace in namespaces)
    offloaded(offloading_cluster, both)
    replaced = offloaded(offloading_cluster, moved)
    until(lambda: copies_deleted(offloading_cluster, moved), "the copies in BookKeeper are gone")
    stored = StoredMessagesRequest(offloading_cluster.addresses.metadata_store_url)
    (whole,), (part,) = (verify_stored(VerifyRequest(str(each), stored), lambda text: None) for each in (both, moved))
    assert (whole.result, whole.entries) == (TopicResult.CLEAN, CLOSED_LEDGERS * ENTRIES_PER_LEDGER + 1)
    assert (part.result, part.entries) == (TopicResult.NOT_PROVEN, 1)
    last = EntryId(ENTRIES_PER_LEDGER - 1)
    assert [(each.ledger_id, each.first_entry_id, each.last_entry_id, each.cause) for each in part.unseen] == [
        (ledger_id, 0, last, UnseenCause.OFFLOADED) for ledger_id in sorted(replaced)
    ]


def test_a_copy_that_tiered_storage_replaced_is_deleted_only_where_the_other_is_whole(
    offloading_cluster: ClusterUnderTest, bucket: S3Storage, tmp_path: Path
) -> None:
    """As a broker leaves it that dies once its list names the copy, before it deletes the ledgers."""
    topic = parse_topic_name(f"persistent://public/default/replaced-{unique()}")
    (whole, context), (broken, kept) = sorted(offloaded(offloading_cluster, topic).items())
    requests.put(f"{topic_url(offloading_cluster, topic)}/unload", timeout=30).raise_for_status()
    bucket.cut(broken, kept, topic.managed_ledger_name, "data")
    with (
        closing(Workload(offloading_cluster)) as workload,
        closing(Sidecars(offloading_cluster.addresses, tmp_path)) as sidecars,
    ):
        sidecar = sidecars.start(**watching(bucket, "append"))
        until(lambda: sidecar.call("GET", f"{BASE}/watch")["state"] == "watching", "the sidecar watches")
        mark_replaced(workload.store, topic)

        def leaks() -> Mapping[int, Mapping[str, str]]:
            answer = sidecar.call("GET", f"{BASE}/watch/leaks", ended="true", limit="1000")
            return {leak["ledgerId"]: leak for leak in answer["leaks"]}

        until(lambda: not workload.existing({whole}), f"the replaced copy is deleted\n{sidecar.log()}")
        until(lambda: leaks().get(whole, {}).get("state") == "deleted", "the watch has seen that it is gone")
        until(lambda: leaks().get(broken, {}).get("state") == "kept", f"the other one is kept\n{sidecar.log()}")
        assert leaks()[whole]["cause"] == leaks()[broken]["cause"] == "offload"
        assert "missing or incomplete: BookKeeper's may be the last one" in leaks()[broken]["detail"]
        assert workload.existing({broken}) == {broken}
        assert bucket.parts(whole, context, topic.managed_ledger_name) == {"data", "index"}
    # An audit would hand the other one to the second phase, which keeps it.
    requests.delete(topic_url(offloading_cluster, topic), params={"force": "true"}, timeout=30).raise_for_status()


def test_what_killed_brokers_leave_in_the_bucket_is_reported_and_then_deleted(
    offloading_cluster: ClusterUnderTest, bucket: S3Storage, refusals: Refusals, tmp_path: Path
) -> None:
    """A broker that dies in a trim, and one that dies between a failed offload and the deletion of what it left."""
    trimmed, failing = (parse_topic_name(f"persistent://public/default/left-{unique()}") for _ in range(2))
    topics = OffloadingTopics(offloading_cluster, bucket, refusals)
    offloaded(offloading_cluster, trimmed)
    fill(offloading_cluster, failing)
    with closing(Sidecars(offloading_cluster.addresses, tmp_path)) as sidecars:
        reporting = sidecars.start(**watching(bucket, "report"))
        until(lambda: reporting.call("GET", f"{BASE}/watch")["state"] == "watching", "the sidecar watches")
        failed = topics.fail_offload(failing)
        left = topics.leave_trimmed(trimmed, "keeps-everything")
        topics.leave_replaced(failed)
        topics.kill_brokers()
        everything = [*left, *failed]
        assert len(everything) > CLOSED_LEDGERS
        wait_for_states(reporting, everything, "leaked")
        assert topics.left(everything) == everything, "report deletes nothing"
        causes = {(leak["ledgerId"], leak["cause"]) for leak in leaks_in_storage(reporting).values()}
        assert causes == {(each[0], "trim") for each in left} | {(each[0], "failed-offload") for each in failed}
        reporting.kill()

        appending = sidecars.start(**watching(bucket, "append"))
        until(lambda: not topics.left(everything), f"what was left is deleted\n{appending.log()}", 60)
        wait_for_states(appending, everything, "deleted")
        offload_closed_ledgers(offloading_cluster, failing)
    kept = [(ledger_id, context, failing) for ledger_id, context in topics.contexts(failing).items()]
    assert len(kept) == CLOSED_LEDGERS
    assert topics.left(kept) == kept


def leaks_in_storage(sidecar: SidecarProcess) -> Mapping[str, Mapping[str, Any]]:
    """Leaks of copies in tiered storage by offload attempt."""
    answer = sidecar.call("GET", f"{BASE}/watch/leaks", ended="true", limit="1000")
    return {leak["offloadAttempt"]: leak for leak in answer["leaks"] if leak["offloadAttempt"] is not None}


def wait_for_states(sidecar: SidecarProcess, copies: Sequence[Copy], state: str) -> None:
    def reached() -> bool:
        found = leaks_in_storage(sidecar)
        return all(found.get(str(each[1].attempt), {}).get("state") == state for each in copies)

    until(reached, f"all of them are {state}\n{sidecar.log()}", 60)


def mark_replaced(store: ZooKeeperMetadataStore, topic: TopicName) -> None:
    """Write that the copies in BookKeeper are deleted, as a broker does before it deletes them."""
    node = store.read(f"/managed-ledgers/{topic.managed_ledger_name}")
    assert node is not None
    info = ManagedLedgerInfo.FromString(node.data)
    for ledger in info.ledgerInfo:
        if ledger.HasField("offloadContext"):
            ledger.offloadContext.bookkeeperDeleted = True
    store.write(node.path, info.SerializeToString(), node.version)


def copies_deleted(cluster: ClusterUnderTest, topic: TopicName) -> bool:
    """Let the broker trim, and see whether it has."""
    requests.post(f"{topic_url(cluster, topic)}/trim", timeout=30).raise_for_status()
    return all(context.bookkeeper_deleted for context in contexts(cluster, topic).values())
