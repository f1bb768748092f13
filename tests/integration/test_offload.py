"""Ledgers offloaded by a real broker are located, recognised and deleted; the managed ledger's list stays intact."""

import re
import shlex
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
from pulsar import MessageId
from pulsar_sidecar.adapters.offload.blocks import indexed_blocks
from pulsar_sidecar.adapters.offload.object_stores import credentials_from_environment
from pulsar_sidecar.adapters.offload.offloaded_ledgers import ObjectStoreOffloadedLedgers
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.bootstrap.stored_messages import verify_stored
from pulsar_sidecar.features.audit.results.tables import OffloadFinding, OrphanCause, OrphanStatus, Table
from pulsar_sidecar.features.duplicates.requests import StoredMessagesRequest, VerifyRequest
from pulsar_sidecar.features.duplicates.verify import TopicResult
from pulsar_sidecar.features.ledger_deletion.ports import OffloadDeletion
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import PermanentError
from pulsar_sidecar.model.ids import EntryId, LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext, UnseenCause
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.ownership.references import managed_ledger_references
from pulsar_sidecar.protobuf.MLDataFormats_pb2 import ManagedLedgerInfo

from tests.cluster.audits import IMPATIENT, Audits, demand_unused
from tests.cluster.broker_view import BrokerView
from tests.cluster.clients import PatientClient
from tests.cluster.offload_leaks import KEYS, Copy, OffloadingTopics, offload_conf, offloading_to, watching
from tests.cluster.offloading import (
    internal_stats,
    offload_closed_ledgers,
    offload_to_directory,
    offloading_namespace,
    start_offload,
    topic_url,
    wait_for_offload,
)
from tests.cluster.patience import until
from tests.cluster.plugin import ClusterFactory
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import BASE, SidecarProcess, Sidecars
from tests.cluster.topics import Workload, unique
from tests.contract.offload_storages import BUCKET, DirectoryStorage, Refusals, S3Storage, s3_server

ENTRIES_PER_LEDGER = 5
CLOSED_LEDGERS = 2
BLOCK_BYTES = 5 * 1024 * 1024
_CLOCK = SystemClock()
_LAG = "managedLedgerOffloadDeletionLagInMillis"
_UUID_LENGTH = 36


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
    """Yield a cluster that offloads to the bucket unless a namespace's policy sets otherwise."""
    with offloading_to(bucket, special_cluster, ENTRIES_PER_LEDGER, BLOCK_BYTES) as cluster:
        yield cluster


def offloaded(cluster: ClusterUnderTest, topic: TopicName, padding: bytes = b"") -> dict[LedgerId, OffloadContext]:
    """Fill ledgers of a new topic and have the broker offload those that are closed."""
    fill(cluster, topic, padding)
    offload_closed_ledgers(cluster, topic)
    return contexts(cluster, topic)


def fill(
    cluster: ClusterUnderTest,
    topic: TopicName,
    padding: bytes = b"",
    entries: int = CLOSED_LEDGERS * ENTRIES_PER_LEDGER + 1,
) -> None:
    client = PatientClient(cluster.addresses)
    try:
        client.subscribe(str(topic), "keeps-everything").close()
        producer = client.create_producer(str(topic), batching_enabled=False)
        for number in range(entries):
            producer.send(b"%d" % number + padding)
    finally:
        client.close()


def contexts(cluster: ClusterUnderTest, topic: TopicName) -> dict[LedgerId, OffloadContext]:
    """Return the offload contexts in the topic's managed ledger, read from the metadata store."""
    with ZooKeeperMetadataStore(cluster.addresses.metadata_store_url, _CLOCK) as store:
        node = store.read(f"/managed-ledgers/{topic.managed_ledger_name}")
    assert node is not None
    ledgers = managed_ledger_references(node.data).ledgers.items()
    return {ledger_id: reference.offload for ledger_id, reference in ledgers if reference.offload is not None}


def test_a_copy_in_a_bucket(offloading_cluster: ClusterUnderTest, bucket: S3Storage) -> None:
    """Several blocks, since an entry and the next one do not fit into the smallest that S3 takes."""
    topic = parse_topic_name(f"persistent://public/default/orders:v1=x-{unique()}")
    name = topic.managed_ledger_name
    found = offloaded(offloading_cluster, topic, bytes(BLOCK_BYTES * 3 // 5))
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
    blocks = indexed_blocks(bucket.content(first, context, "index"), len(bucket.content(first, context, "data")))
    assert [block.end - block.start for block in blocks[:-1]] == [BLOCK_BYTES] * (ENTRIES_PER_LEDGER - 1)

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


def offloaded_twice(
    cluster: ClusterUnderTest, directory: DirectoryStorage, tmp_path: Path
) -> tuple[TopicName, Mapping[LedgerId, OffloadContext], TopicName, Mapping[LedgerId, OffloadContext]]:
    """Return a topic with its ledgers in both places, and one whose ledgers are in tiered storage alone."""
    base = directory.context(1, 2).driver_metadata["storageBasePath"]
    at_once = {"managedLedgerOffloadDeletionLagInMillis": 0}
    namespaces = ("public/default", offload_to_directory(cluster, base, tmp_path / "profile.xml", at_once))
    both, moved = (parse_topic_name(f"persistent://{namespace}/offloaded-{unique()}") for namespace in namespaces)
    kept, replaced = offloaded(cluster, both), offloaded(cluster, moved)
    until(lambda: copies_deleted(cluster, moved), "the copies in BookKeeper are gone")
    return both, kept, moved, replaced


def test_an_audit_of_offloaded_topics(
    offloading_cluster: ClusterUnderTest, directory: DirectoryStorage, tmp_path: Path
) -> None:
    """A ledger in both places is in use; one whose copy in BookKeeper is gone is not missing; all of it still reads."""
    both, kept, moved, replaced = offloaded_twice(offloading_cluster, directory, tmp_path)
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


def test_copies_past_their_namespaces_deletion_lag(
    offloading_cluster: ClusterUnderTest, bucket: S3Storage, directory: DirectoryStorage, tmp_path: Path
) -> None:
    """A namespace's own lag comes before the option, and a broker that trims then deletes what was late."""
    lags = ({_LAG: 0}, {_LAG: 3_600_000})
    at_once, later = (directory_topic(offloading_cluster, directory, tmp_path / "profile.xml", lag) for lag in lags)
    default = parse_topic_name(f"persistent://public/default/late-{unique()}")
    for topic in (at_once, later, default):
        offloaded(offloading_cluster, topic)
    places = (bucket.location, directory.location)
    audits = Audits(offloading_cluster.addresses, tmp_path, replace(IMPATIENT, offload_lag_ms=1_000), places)

    def late() -> dict[str, set[str]]:
        time.sleep(1)
        found = defaultdict(set)
        for row in audits.look().offloaded:
            if row["finding"] == OffloadFinding.BOOKKEEPER_LATE:
                found[row["topic"]].add(row["reason"].partition("deletion lag ")[2])
        return {str(topic): found[str(topic)] for topic in (at_once, later, default)}

    by_the_option = {str(later): set(), str(default): {"of --offload-deletion-lag-hours, 0.0002778 h"}}
    assert late() == {str(at_once): {"that its namespace sets, 0 h"}, **by_the_option}
    until(lambda: copies_deleted(offloading_cluster, at_once), "the broker deletes what is late")
    assert late() == {str(at_once): set(), **by_the_option}


def directory_topic(
    cluster: ClusterUnderTest, directory: DirectoryStorage, profile: Path, policies: Mapping[str, int]
) -> TopicName:
    """Return a new topic in a namespace that offloads to the directory, with these offload policies."""
    base = directory.context(1, 2).driver_metadata["storageBasePath"]
    return parse_topic_name(f"persistent://{offload_to_directory(cluster, base, profile, policies)}/offloaded")


@pytest.mark.parametrize("to", ["bucket", "directory"])
def test_objects_of_automatic_offloads_go_with_their_topic(
    offloading_cluster: ClusterUnderTest, bucket: S3Storage, directory: DirectoryStorage, tmp_path: Path, to: str
) -> None:
    """Contrary to the report of apache/pulsar 16687."""
    threshold = {"managedLedgerOffloadThresholdInBytes": 0}
    storage: S3Storage | DirectoryStorage = bucket if to == "bucket" else directory
    if to == "bucket":
        namespace = offloading_namespace(offloading_cluster, {**offload_conf(bucket), **threshold})
        topic = parse_topic_name(f"persistent://{namespace}/offloaded")
    else:
        topic = directory_topic(offloading_cluster, directory, tmp_path / "profile.xml", threshold)
    fill(offloading_cluster, topic)

    def completed() -> dict[LedgerId, OffloadContext]:
        return {ledger_id: each for ledger_id, each in contexts(offloading_cluster, topic).items() if each.complete}

    until(lambda: len(completed()) == CLOSED_LEDGERS, "the broker has offloaded")
    copies = completed().items()
    assert all(storage.parts(*copy, topic.managed_ledger_name) == {"data", "index"} for copy in copies)
    url = topic_url(offloading_cluster, topic)
    requests.post(f"{url}/subscription/keeps-everything/skip_all", timeout=30).raise_for_status()
    requests.delete(url, timeout=60).raise_for_status()
    until(
        lambda: not any(storage.parts(*copy, topic.managed_ledger_name) for copy in copies),
        "the broker deletes the objects",
    )
    look = Audits(offloading_cluster.addresses, tmp_path, offload_locations=(storage.location,)).look()
    assert not [row for row in look.offloaded if row["topic"] == str(topic)]


@pytest.mark.parametrize("entries", [1, CLOSED_LEDGERS * ENTRIES_PER_LEDGER + 1], ids=["open", "first"])
def test_an_offload_that_uploads_nothing_is_no_copy(
    offloading_cluster: ClusterUnderTest, bucket: S3Storage, tmp_path: Path, entries: int
) -> None:
    """Like apache/pulsar 22839: brokers report success where no closed ledger comes before the position's."""
    topic = parse_topic_name(f"persistent://public/default/nothing-{unique()}")
    fill(offloading_cluster, topic, entries=entries)
    url, before = topic_url(offloading_cluster, topic), bucket.object_names()
    start_offload(url, f"{internal_stats(url)['ledgers'][0]['ledgerId']}:0")
    wait_for_offload(url)
    assert bucket.object_names() == before
    assert not contexts(offloading_cluster, topic)
    look = Audits(offloading_cluster.addresses, tmp_path, offload_locations=(bucket.location,)).look()
    assert not [row for row in look.offloaded if row["topic"] == str(topic)]
    with closing(Sidecars(offloading_cluster.addresses, tmp_path)) as sidecars:
        (pins,) = sidecars.start(**watching(bucket, "off")).call(
            "GET", f"/admin/v2/pins/persistent/{topic.namespace}/{topic.local_name}"
        )
    assert pins["tieredBytes"] == pins["tieredAloneLedgers"] == pins["tieredAndBookiesBytes"] == 0
    assert "offload-deletion-lag" not in {pin["cause"] for pin in pins["pins"]}


def test_objects_that_stay_are_those_of_the_brokers_own_scan(
    offloading_cluster: ClusterUnderTest, bucket: S3Storage, refusals: Refusals, tmp_path: Path
) -> None:
    """Deletions that a driver reports and does not make (apache/pulsar 14693), and a trim during an offload (13219)."""
    topics = OffloadingTopics(offloading_cluster, bucket, refusals)
    silent, raced, whole = (
        parse_topic_name(f"persistent://public/default/{name}-{unique()}") for name in ("silent", "raced", "whole")
    )
    offloaded(offloading_cluster, whole)
    offloaded(offloading_cluster, silent)
    fill(offloading_cluster, raced)
    refusals.silent = True
    left = {OrphanCause.INTERRUPTED_TRIM: topics.leave_trimmed(silent, "keeps-everything")}
    left[OrphanCause.FAILED_OFFLOAD] = topics.fail_offload(raced)
    topics.leave_trimmed(raced, "keeps-everything")
    another = LedgerId(900), bucket.context(7, 900), whole.managed_ledger_name
    bucket.put_foreign(*another)
    audits = Audits(offloading_cluster.addresses, tmp_path, offload_locations=(bucket.location,))
    audits.wait_between_looks()
    look = audits.look()
    for cause, copies in left.items():
        assert topics.left(copies) == copies
        attempts = {str(context.attempt) for _, context, _ in copies}
        found = [row for row in look.offloaded if row["attempt"] in attempts]
        assert [(row["finding"], row["cause"]) for row in found] == [("unreferenced", cause)] * len(copies)

    url = f"{offloading_cluster.addresses.web_service_urls[0]}/admin/v2/namespaces/public/default/scanOffloadedLedgers"
    scanned = requests.get(url, timeout=60).text
    # It is no JSON.
    counts = {name: int(text) for name, text in re.findall('"(total|errors|unknown)": ([0-9]+)', scanned)}
    unnamed = {row["attempt"] for row in look.offloaded if row["finding"] in ("unreferenced", "unfinished")}
    names = bucket.object_names()
    errors = {name for name in names if name[:_UUID_LENGTH] in unnamed}
    foreign = {name for name in names if name.startswith(str(another[1].attempt))}
    assert counts == {"total": len(names), "errors": len(errors), "unknown": len(foreign)}
    # Only now: brokers delete after the list no longer names the objects, at a time of their own.
    refusals.silent = refusals.deletions = False
    for name in errors | foreign:
        bucket.remove(name)


def test_topics_in_tiered_storage_alone_are_never_verified_as_clean(
    offloading_cluster: ClusterUnderTest, directory: DirectoryStorage, tmp_path: Path
) -> None:
    both, _, moved, replaced = offloaded_twice(offloading_cluster, directory, tmp_path)
    stored = StoredMessagesRequest(offloading_cluster.addresses.metadata_store_url)
    (whole,), (part,) = (verify_stored(VerifyRequest(str(each), stored), lambda text: None) for each in (both, moved))
    assert (whole.result, whole.entries) == (TopicResult.CLEAN, CLOSED_LEDGERS * ENTRIES_PER_LEDGER + 1)
    assert (part.result, part.entries) == (TopicResult.NOT_PROVEN, 1)
    last = EntryId(ENTRIES_PER_LEDGER - 1)
    assert [(each.ledger_id, each.first_entry_id, each.last_entry_id, each.cause) for each in part.unseen] == [
        (ledger_id, 0, last, UnseenCause.OFFLOADED) for ledger_id in sorted(replaced)
    ]


def test_bookkeepers_copy_is_deleted_only_where_the_offloaded_one_is_whole(
    offloading_cluster: ClusterUnderTest, bucket: S3Storage, tmp_path: Path
) -> None:
    """State after the death of a broker whose list names the copy, before it deletes the ledgers."""
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
        assert "missing or incomplete: this one may be the last" in leaks()[broken]["detail"]
        assert workload.existing({broken}) == {broken}
        assert bucket.parts(whole, context, topic.managed_ledger_name) == {"data", "index"}
    # An audit would hand the broken one to the second phase, which keeps it.
    requests.delete(topic_url(offloading_cluster, topic), params={"force": "true"}, timeout=30).raise_for_status()


def test_bookkeepers_copy_beside_one_in_a_directory_goes_by_the_pins_remedy_only_where_that_is_whole(
    offloading_cluster: ClusterUnderTest, directory: DirectoryStorage, tmp_path: Path
) -> None:
    base = directory.context(1, 2).driver_metadata["storageBasePath"]
    namespace = offload_to_directory(offloading_cluster, base, tmp_path / "profile.xml")
    topic = parse_topic_name(f"persistent://{namespace}/replaced")
    (whole, context), (broken, kept) = sorted(offloaded(offloading_cluster, topic).items())
    requests.put(f"{topic_url(offloading_cluster, topic)}/unload", timeout=30).raise_for_status()
    with (
        closing(Workload(offloading_cluster)) as workload,
        closing(Sidecars(offloading_cluster.addresses, tmp_path)) as sidecars,
    ):
        sidecar = sidecars.start(offload_allowed_locations=base, bookkeeper_exclusive_to_cluster="true")

        def pins() -> Mapping[str, Any]:
            (found,) = sidecar.call("GET", f"/admin/v2/pins/persistent/{topic.namespace}/{topic.local_name}")
            return found

        both = pins()
        assert both["tieredAndBookiesBytes"] == both["tieredBytes"] > both["tieredAloneBytes"] == 0
        (lag,) = (pin for pin in both["pins"] if pin["cause"] == "offload-deletion-lag")
        assert lag["ledgerIds"] == [whole, broken]

        mark_replaced(workload.store, topic)
        directory.cut(broken, kept, topic.managed_ledger_name, "data")
        alone = pins()
        assert (alone["tieredAloneLedgers"], alone["tieredAloneBytes"]) == (2, both["tieredBytes"])
        left = {pin["ledgerIds"][0]: pin for pin in alone["pins"] if pin["cause"] == "replaced-copy"}
        assert left.keys() == {whole, broken}
        ran = {ledger_id: sidecar.command(*remedy_of(pin)) for ledger_id, pin in left.items()}
        assert (ran[whole].exit_code, ran[broken].exit_code != 0) == (0, True), ran
        assert "missing or incomplete: this one may be the last" in ran[broken].stderr
        assert workload.existing({whole, broken}) == {broken}
        assert directory.parts(whole, context, topic.managed_ledger_name) == {"data", "index"}
        first = workload.client.create_reader(str(topic), MessageId.earliest)
        assert [first.read_next(30_000).data() for _ in range(ENTRIES_PER_LEDGER)] == [
            b"%d" % number for number in range(ENTRIES_PER_LEDGER)
        ]
    requests.delete(topic_url(offloading_cluster, topic), params={"force": "true"}, timeout=30).raise_for_status()


def remedy_of(pin: Mapping[str, Any]) -> list[str]:
    (remedy,) = pin["remedies"]
    program, *arguments = shlex.split(remedy["command"])
    assert program == "pulsar-sidecar"
    return arguments


def test_failed_offloads_of_killed_brokers_are_reported_and_then_deleted(
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


def test_an_audit_of_tiered_storage(
    offloading_cluster: ClusterUnderTest,
    bucket: S3Storage,
    refusals: Refusals,
    directory: DirectoryStorage,
    tmp_path: Path,
) -> None:
    """Find what killed brokers, deleted topics and hands leave, and delete only what nothing references."""
    names = ("trimmed", "failing", "deleted", "damaged")
    trimmed, failing, deleted, damaged = (
        parse_topic_name(f"persistent://public/default/{name}-{unique()}") for name in names
    )
    topics = OffloadingTopics(offloading_cluster, bucket, refusals)
    _, _, moved, replaced = offloaded_twice(offloading_cluster, directory, tmp_path)
    gone, parts = (offloaded(offloading_cluster, topic) for topic in (deleted, damaged))
    offloaded(offloading_cluster, trimmed)
    fill(offloading_cluster, failing)
    failed = topics.fail_offload(failing)
    left = topics.leave_trimmed(trimmed, "keeps-everything")
    topics.leave_replaced(failed)
    with suppress(requests.RequestException):  # the broker may wait for the bucket, which refuses
        requests.delete(topic_url(offloading_cluster, deleted), params={"force": "true"}, timeout=5)
    until(lambda: not has_list(offloading_cluster, deleted), "the topic is deleted")
    topics.kill_brokers()
    by_nobody, nowhere = directory.context(7, 8), parse_topic_name("persistent://public/default/nowhere")
    directory.put(LedgerId(7), by_nobody, nowhere.managed_ledger_name)
    (no_data, without), (cut, shorter) = sorted(parts.items())
    bucket.remove(f"{without.attempt}-ledger-{no_data}")
    bucket.cut(cut, shorter, damaged.managed_ledger_name, "index")
    (lost, only), *_ = sorted(replaced.items())
    directory.cut(lost, only, moved.managed_ledger_name, "data")

    context = bucket.context(1, 2).driver_metadata
    locations = (
        f"s3://{BUCKET}@{context['serviceEndpoint']}",
        directory.context(1, 2).driver_metadata["storageBasePath"].replace("file:/", "file:///", 1),
    )
    policy = replace(IMPATIENT, offload_exclusive=True, offload_lag_ms=1_000)
    audits = Audits(offloading_cluster.addresses, tmp_path, policy, locations)
    audits.look()
    audits.wait_between_looks()
    look = audits.look()
    mine = {
        (topic, row["ledger_id"]): row
        for row in look.offloaded
        if (topic := row["topic"]) in {str(each) for each in (trimmed, failing, deleted, damaged, moved)}
        and row["finding"] != OffloadFinding.BOOKKEEPER_LATE
    }
    planned = [*left, *failed, *((ledger_id, each, deleted) for ledger_id, each in gone.items())]
    planned = [each for each in planned if bucket.parts(each[0], each[1], each[2].managed_ledger_name)]
    assert {name for name, _ in mine} == {str(each) for each in (trimmed, failing, deleted, damaged, moved)}
    causes = {trimmed: "interrupted-trim", failing: "failed-offload", deleted: "half-deleted-topic"}
    for ledger_id, _, topic in planned:
        row = mine.pop((str(topic), ledger_id))
        assert (row["finding"], row["standing"], row["cause"]) == ("unreferenced", "condemned", causes[topic])
    assert {(topic, ledger_id): (row["finding"], row["reason"]) for (topic, ledger_id), row in mine.items()} == {
        (str(damaged), no_data): ("damaged", "data missing; BookKeeper still has the ledger"),
        (str(damaged), cut): ("damaged", "the index is too short, or is not an index; BookKeeper still has the ledger"),
        (str(moved), lost): (
            "lost",
            "the data do not hold every entry of a closed ledger; by the list tiered storage has the only copy",
        ),
    }
    before = bucket.object_names()
    going = {row["attempt"] for row in look.offloaded if row["standing"] == OrphanStatus.DELETABLE.value}
    settings = {**watching(bucket, "off"), "offload_allowed_locations": ",".join(locations)}
    with closing(Sidecars(offloading_cluster.addresses, tmp_path)) as sidecars:
        sidecar = sidecars.start(**settings)
        assert audits.apply(look).sent
        until(lambda: not topics.left(planned), f"what nothing references is deleted\n{sidecar.log()}", 60)
        until(
            lambda: not directory.parts(LedgerId(7), by_nobody, nowhere.managed_ledger_name),
            f"the copy in the directory is deleted\n{sidecar.log()}",
        )
    assert bucket.object_names() == {key for key in before if not key.startswith(tuple(going))}
    assert not going & {row["attempt"] for row in audits.look().offloaded}, "a listing afterwards shows them gone"
    assert directory.parts(lost, only, moved.managed_ledger_name) == {"data", "index"}


def has_list(cluster: ClusterUnderTest, topic: TopicName) -> bool:
    with ZooKeeperMetadataStore(cluster.addresses.metadata_store_url, _CLOCK) as store:
        return store.read(f"/managed-ledgers/{topic.managed_ledger_name}") is not None


def leaks_in_storage(sidecar: SidecarProcess) -> Mapping[str, Mapping[str, Any]]:
    """Return leaks of copies in tiered storage by offload attempt."""
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
