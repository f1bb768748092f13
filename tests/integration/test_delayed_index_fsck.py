"""Delayed indexes damaged in every way, found, repaired, and loaded by a real broker afterwards (PIP-195).

One topic has a subscription for each kind of damage. No broker has it loaded until everything is repaired; then its
bucket tracker recovers each subscription's buckets and each message is delivered once, as due.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
from pulsar_sidecar.adapters.bookkeeper.ledger_writer import Replication
from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.snapshot import (
    DelayedIndexes,
    SegmentMetadata,
    encode_metadata,
    encode_segment,
    segment_metadata_of,
)
from pulsar_sidecar.model.ids import EntryId, LedgerId
from pulsar_sidecar.model.names import encode_cursor, parse_topic_name
from pulsar_sidecar.ownership.claims import BucketClaim, bucket_custom_metadata
from pulsar_sidecar.ownership.exact_decoding import decode_exactly, unwrap
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata, encode_ledger_metadata
from pulsar_sidecar.ownership.paths import cursor_path, ledger_path
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml
from pyroaring import BitMap

from tests.cluster.buckets import BUCKETS
from tests.cluster.delays import SHARED, DelayedTopic, await_rest, before_due, now_ms
from tests.cluster.patience import until
from tests.cluster.plugin import ClusterFactory
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import SidecarProcess, Sidecars
from tests.cluster.topics import unique
from tests.contract.snapshot_storages import BookieStorage, real_bookkeeper

PER_LEDGER = 10
BROKER_CONF = {
    **BUCKETS,
    "delayedDeliveryMinIndexCountPerBucket": "5",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "7",
    "managedLedgerMaxEntriesPerLedger": str(PER_LEDGER),
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "brokerDeleteInactiveTopicsEnabled": "false",
}
HIDDEN_BOOKIE = "127.0.0.1:9"
EVERYTHING = {"allMessages": "true", "orphans": "true", "settleSeconds": "0"}
Rows = Sequence[tuple[int, int, int]]


class Setup:
    def __init__(self, cluster: ClusterUnderTest, sidecar: SidecarProcess, stack: ExitStack) -> None:
        self.cluster, self.sidecar = cluster, sidecar
        self.bookkeeper: BookieStorage = real_bookkeeper(cluster, stack)
        self.store = self.bookkeeper.store

    def topic(self, stack: ExitStack) -> DelayedTopic:
        topic = DelayedTopic(self.cluster.addresses, parse_topic_name(f"fsck-{unique()}"))
        stack.callback(topic.close)
        return topic

    def check(self, topic: DelayedTopic, **parameters: str) -> set[tuple[str, str | None, int | None]]:
        """Return kind, subscription and ledger of each finding."""
        answer = self.sidecar.call("GET", f"{topic.path}/delayedIndex/fsck", **(EVERYTHING | parameters))
        assert all(each["cause"] and each["consequence"] and each["remedy"] for each in answer["findings"])
        return {(each["kind"], each["subscription"], each["ledgerId"]) for each in answer["findings"]}

    def plan(self, topic: DelayedTopic) -> dict[str, Any]:
        return self.sidecar.call("GET", f"{topic.path}/delayedIndex/repair", **EVERYTHING)

    def buckets(self, topic: DelayedTopic) -> int:
        """Return the number of buckets that fsck checks."""
        answer = self.sidecar.call("GET", f"{topic.path}/delayedIndex/fsck", sample="0")
        return int(answer["checked"]["buckets"])

    def is_there(self, ledger_id: int) -> bool:
        return self.store.read(ledger_path(LedgerId(ledger_id))) is not None


class Damaged:
    """A subscription of the topic whose buckets the test writes."""

    def __init__(self, setup: Setup, topic: DelayedTopic, subscription: str) -> None:
        self._setup, self._topic, self.subscription = setup, topic, subscription
        self._path = cursor_path(topic.topic.managed_ledger_name, encode_cursor(subscription))

    def rows(self, *ledgers: int) -> list[tuple[int, int, int]]:
        """Return due time, ledger and entry of each message in the topic's n-th ledgers, in order of time."""
        wanted = [sorted({sent.ledger_id for sent in self._topic.sent})[number] for number in ledgers]
        sent = [each for each in self._topic.sent if each.ledger_id in wanted]
        return sorted((each.deliver_at, each.ledger_id, each.entry_id) for each in sent)

    def key(self, rows: Rows) -> str:
        ledgers = [ledger for _, ledger, _ in rows]
        return str(BucketKey(LedgerId(min(ledgers)), LedgerId(max(ledgers))))

    def write(self, rows: Rows, metadata: bytes | None = None) -> int:
        """Write a bucket's ledger with two segments, entry 0 as given."""
        segments = [DelayedIndexes.of(part) for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :])]
        first = encode_metadata(map(segment_metadata_of, segments)) if metadata is None else metadata
        claim = BucketClaim(self._topic.topic, self.subscription, self.key(rows))
        payloads = [first, *map(encode_segment, segments)]
        return self._setup.bookkeeper.writer.write(payloads, bucket_custom_metadata(claim), Replication(1, 1, 1))

    def name(self, buckets: Mapping[str, int]) -> None:
        """Point the cursor's properties to these ledgers as well."""
        node = self._setup.store.read(self._path)
        assert node is not None
        info = decode_exactly(ml.ManagedCursorInfo, unwrap(node.data))
        for key, ledger_id in buckets.items():
            info.cursorProperties.add(name=key, value=str(ledger_id))
        self._setup.store.write(self._path, info.SerializeToString(), node.version)

    def sound(self, *ledgers: int) -> int:
        """Write a sound bucket."""
        rows = self.rows(*ledgers)
        ledger_id = self.write(rows)
        self.name({self.key(rows): ledger_id})
        return ledger_id

    def lengthen(self, number: int) -> None:
        """Claim in the node of one of the topic's ledgers one entry more than bookies have."""

        def longer(data: bytes) -> bytes:
            metadata = decode_ledger_metadata(data)
            return encode_ledger_metadata(replace(metadata, last_entry_id=EntryId(metadata.last_entry_id + 1)))

        self.rewrite_node(self.rows(number)[0][1], longer)

    def rewrite_node(self, ledger_id: int, change: Callable[[bytes], bytes]) -> None:
        path = ledger_path(LedgerId(ledger_id))
        node = self._setup.store.read(path)
        assert node is not None
        self._setup.store.write(path, change(node.data), node.version)


@pytest.fixture(scope="module")
def setup(special_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    with special_cluster(brokers=1, bookies=1, broker_conf=BROKER_CONF) as cluster, ExitStack() as stack:
        sidecars = _sidecars(cluster, tmp_path_factory.mktemp("sidecars"), stack)
        yield Setup(cluster, sidecars.start(), stack)


def _sidecars(cluster: ClusterUnderTest, directory: Path, stack: ExitStack) -> Sidecars:
    sidecars = Sidecars(cluster.addresses, directory)
    stack.callback(sidecars.close)
    return sidecars


# --- damage: each adds what is wrong to a subscription with one sound bucket over the 2nd and 3rd ledger -------------


def dangling(one: Damaged, setup: Setup) -> set[tuple[str, int]]:
    ledger_id = one.sound(3)
    setup.store.delete(ledger_path(LedgerId(ledger_id)))
    return {("dangling-pointer", ledger_id)}


def foreign(one: Damaged, setup: Setup) -> set[tuple[str, int]]:
    rows = one.rows(3)
    data_ledger = rows[0][1]
    one.name({one.key(rows): data_ledger})
    return {("foreign-ledger", data_ledger)}


def malformed_key(one: Damaged, setup: Setup) -> set[tuple[str, int]]:
    ledger_id = one.write(one.rows(3))
    one.name({"#pulsar.internal.delayed.bucket_5": ledger_id})
    return {("bad-key", ledger_id)}


def cut(one: Damaged, setup: Setup) -> set[tuple[str, int]]:
    rows = one.rows(3)
    ledger_id = one.write(rows, encode_metadata([segment_metadata_of(DelayedIndexes.of(rows))])[:-3])
    one.name({one.key(rows): ledger_id})
    return {("unreadable-snapshot", ledger_id)}


def wrong_bit(one: Damaged, setup: Setup) -> set[tuple[str, int]]:
    rows = one.rows(3)
    right = [segment_metadata_of(DelayedIndexes.of(part)) for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :])]
    [(ledger, bits)] = right[0].bitmaps.items()
    wrong = SegmentMetadata(
        {ledger: bits | BitMap([9_999])}, right[0].min_schedule_timestamp, right[0].max_schedule_timestamp
    )
    ledger_id = one.write(rows, encode_metadata([wrong, right[1]]))
    one.name({one.key(rows): ledger_id})
    return {("wrong-bitmap", ledger_id), ("outside-topic", ledger_id)}


def wrong_time(one: Damaged, setup: Setup) -> set[tuple[str, int]]:
    rows = [(due + 7, ledger, entry) for due, ledger, entry in one.rows(3)]
    ledger_id = one.write(rows)
    one.name({one.key(rows): ledger_id})
    return {("wrong-deliver-at", ledger_id)}


def outside(one: Damaged, setup: Setup) -> set[tuple[str, int]]:
    rows = [*one.rows(3)]
    rows[-1] = (rows[-1][0], rows[-1][1], PER_LEDGER)
    ledger_id = one.write(rows)
    one.name({one.key(rows): ledger_id})
    return {("outside-topic", ledger_id)}


def overlapping(one: Damaged, setup: Setup) -> set[tuple[str, int]]:
    ledger_id = one.sound(2)
    return {("overlap", ledger_id)}


def dead(one: Damaged, setup: Setup) -> set[tuple[str, int]]:
    return {("dead-bucket", one.sound(0))}


def orphaned(one: Damaged, setup: Setup) -> set[tuple[str, int]]:
    right = one.write(one.rows(3))
    wrong = one.write([(due + 7, ledger, entry) for due, ledger, entry in one.rows(4)])
    return {("orphaned-bucket", right), ("orphaned-bucket", wrong)}


def nothing(one: Damaged, setup: Setup) -> set[tuple[str, int]]:
    one.sound(3)
    return set()


REPAIRED = [dangling, foreign, malformed_key, cut, wrong_bit, wrong_time, outside, overlapping, dead, orphaned, nothing]


def garbled(one: Damaged, setup: Setup) -> set[tuple[str, int]]:
    ledger_id = one.sound(3)
    one.rewrite_node(ledger_id, lambda data: data[:-1])
    return {("unreadable-node", ledger_id)}


def away(one: Damaged, setup: Setup) -> set[tuple[str, int]]:
    ledger_id = one.sound(3)
    bookie = setup.bookkeeper.metadata(LedgerId(ledger_id)).segments[0].ensemble[0]
    hidden = HIDDEN_BOOKIE.rjust(len(bookie), "0").encode()
    assert len(hidden) == len(bookie)
    one.rewrite_node(ledger_id, lambda data: data.replace(bookie.encode(), hidden))
    return {("unread-snapshot", ledger_id)}


LEFT = [garbled, away]


def test_every_damaged_part_is_found_and_repaired_and_the_bucket_tracker_delivers_as_due(setup: Setup) -> None:
    with ExitStack() as stack:
        topic = before_due(lambda due: _damaged_and_repaired(setup, setup.topic(stack), due))
        _deliver_everything(setup, topic)


def _damaged_and_repaired(setup: Setup, topic: DelayedTopic, due: int) -> DelayedTopic:
    for defect in REPAIRED + LEFT:
        topic.subscribe(defect.__name__, SHARED)
    topic.send(PER_LEDGER, now_ms() - 60_000)
    with topic.consuming(dead.__name__, SHARED) as deliveries:
        until(lambda: len(deliveries.numbers) == PER_LEDGER, "what is due is consumed")
    until(lambda: topic.backlogs()[dead.__name__] == 0, "and acknowledged")
    topic.send(35, [due + 20 * (number * 7 % 35) for number in range(35)])
    topic.unload()
    expected: set[tuple[str, str | None, int | None]] = set()
    for defect in REPAIRED + LEFT:
        one = Damaged(setup, topic, defect.__name__)
        one.sound(1, 2)
        expected |= {(kind, defect.__name__, ledger_id) for kind, ledger_id in defect(one, setup)}
    assert setup.check(topic) == expected

    plan = setup.plan(topic)
    steps = {(each["subscription"], each["ledgerId"]): each["step"] for each in plan["actions"]}
    assert plan["loaded"] == []
    assert {each["kind"] for each in plan["left"]} == {"unreadable-node", "unread-snapshot"}
    answers = setup.sidecar.call("POST", f"{topic.path}/delayedIndex/repair", plan=plan["plan"], **EVERYTHING)
    assert [each["problem"] for each in answers] == [None] * len(plan["actions"])
    left = {(kind, name, ledger) for kind, name, ledger in expected if (name, ledger) not in steps}
    gone = [ledger for (_, ledger), step in steps.items() if step in ("retire", "hand-over")]
    until(lambda: not any(map(setup.is_there, gone)), "the deletion service deletes what was handed over")
    assert all(setup.is_there(ledger) for (name, ledger), step in steps.items() if name == foreign.__name__)
    assert sorted({step for (name, _), step in steps.items() if name == orphaned.__name__}) == ["attach", "hand-over"]
    assert setup.check(topic) == left
    return topic


def _deliver_everything(setup: Setup, topic: DelayedTopic) -> None:
    with ExitStack() as stack:
        deliveries = {
            defect.__name__: stack.enter_context(topic.consuming(defect.__name__, SHARED, consumers=1))
            for defect in REPAIRED
        }
        last = max(sent.deliver_at for sent in topic.sent)
        for name, delivered in deliveries.items():
            expected = set(range(PER_LEDGER if name == dead.__name__ else 0, len(topic.sent)))
            await_rest(delivered, expected, last)
            assert (delivered.numbers, delivered.repeated) == (expected, {}), name
            late = topic.sent[PER_LEDGER:]
            early = [sent.number for sent in late if delivered.times[sent.number][0] < sent.deliver_at - 1_100]
            assert early == [], name
    log = setup.cluster.log("broker-1", 20_000)
    recovered = set(re.findall(rf"{re.escape(topic.topic.local_name)} / (\w+).*Recover.*finish, buckets: [12],", log))
    assert recovered == {defect.__name__ for defect in REPAIRED}
    assert "fallback" not in "\n".join(line for line in log.splitlines() if topic.topic.local_name in line)


def test_a_loaded_topic_is_refused_and_nothing_is_changed(setup: Setup) -> None:
    with ExitStack() as stack:
        topic = setup.topic(stack)
        topic.subscribe("dangling", SHARED)
        topic.send(35, now_ms() + 3_600_000)
        topic.unload()
        one = Damaged(setup, topic, "dangling")
        found = dangling(one, setup)
        plan = setup.plan(topic)
        with topic.consuming("dangling", SHARED, consumers=1):
            [loaded] = setup.plan(topic)["loaded"]
            assert loaded["topic"] == str(topic.topic)
            assert len(loaded["clients"]) == 1
            assert " of dangling at " in loaded["clients"][0]
        answer = setup.sidecar.request(
            "POST", f"{topic.path}/delayedIndex/repair", None, plan=plan["plan"], **EVERYTHING
        )
        assert (answer.status_code, "topics unload" in answer.text) == (409, True)
        topic.unload()
        answer = setup.sidecar.request("POST", f"{topic.path}/delayedIndex/repair", None, plan="0" * 64, **EVERYTHING)
        assert (answer.status_code, "not the approved one" in answer.text) == (409, True)
        assert setup.check(topic) == {(kind, "dangling", ledger_id) for kind, ledger_id in found}


def test_a_message_that_no_bookie_has_does_not_keep_a_repair_from_its_unloaded_topic(setup: Setup) -> None:
    with ExitStack() as stack:
        topic = setup.topic(stack)
        topic.subscribe("s", SHARED)
        topic.send(25, now_ms() + 3_600_000)
        topic.unload()
        one = Damaged(setup, topic, "s")
        one.lengthen(2)
        rows = one.rows(2)
        due_ms, data_ledger, last = rows[-1]
        one.name({one.key(rows): one.write([*rows, (due_ms, data_ledger, last + 1)])})
        gone = one.sound(0)
        setup.store.delete(ledger_path(LedgerId(gone)))
        plan = setup.plan(topic)
        assert [(each["step"], each["ledgerId"]) for each in plan["actions"]] == [("drop-pointer", gone)]
        assert (plan["left"], plan["checked"]["unread"]) == ([], 1)
        answers = setup.sidecar.call("POST", f"{topic.path}/delayedIndex/repair", plan=plan["plan"], **EVERYTHING)
        assert [each["problem"] for each in answers] == [None]


def test_a_sound_topic_is_clean_while_messages_flow(setup: Setup) -> None:
    with ExitStack() as stack:
        topic = setup.topic(stack)
        topic.subscribe("s", SHARED)
        deliveries = stack.enter_context(topic.consuming("s", SHARED))
        buckets = 0
        for _ in range(4):
            soon = now_ms() + 3_000
            topic.send(45, [soon + 100 * number for number in range(45)])
            assert setup.check(topic) == set()
            buckets += setup.buckets(topic)
        assert buckets > 0
        until(lambda: len(deliveries.numbers) == len(topic.sent), "everything is delivered")
        assert setup.check(topic) == set()


def test_repair_attaches_buckets_of_a_killed_build_and_the_next_build_completes_them(setup: Setup) -> None:
    """The killed sidecar has attached nothing, and what it wrote is found and used."""
    messages = 600
    with ExitStack() as stack:
        topic, sidecar = setup.topic(stack), setup.sidecar
        topic.subscribe("s", SHARED)
        topic.send(messages, now_ms() + 3_600_000)
        topic.unload()
        index = f"{topic.path}/delayedIndex"
        planned = sidecar.call("POST", f"{index}/build")

        def ledgers() -> int:
            return len(setup.store.children("/ledgers/00/0000") or ())

        before = ledgers()
        with ThreadPoolExecutor(1) as threads:
            building = threads.submit(sidecar.request, "POST", f"{index}/build", None, plan=planned["plan"])
            until(lambda: ledgers() >= before + 3, "some buckets are written")
            sidecar.kill()
            assert isinstance(building.exception(), requests.ConnectionError)
        sidecar.restart()
        sidecar.wait_until_ready()
        found = sidecar.call("GET", f"{index}/fsck", **EVERYTHING)
        assert {each["kind"] for each in found["findings"]} == {"orphaned-bucket"}
        assert 2 <= len(found["findings"]) < len(planned["subscriptions"][0]["buckets"])
        assert found["checked"]["buckets"] == 0, "the cursor names none"

        repair = sidecar.call("GET", f"{index}/repair", **EVERYTHING)
        # The last one may not have been complete.
        assert [each["step"] for each in repair["actions"]].count("attach") >= len(repair["actions"]) - 1
        repaired = sidecar.call("POST", f"{index}/repair", plan=repair["plan"], **EVERYTHING)
        assert [each["problem"] for each in repaired] == [None] * len(repair["actions"])
        again = sidecar.call("POST", f"{index}/build")
        sidecar.call("POST", f"{index}/build", plan=again["plan"])
        clean = sidecar.call("GET", f"{index}/fsck", allMessages="true")
        assert clean["findings"] == []
        assert (clean["checked"]["indexes"], clean["checked"]["entries"]) == (messages, messages)


def test_settings_that_stop_dispatch_and_buckets_that_brokers_do_not_read(
    special_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory
) -> None:
    odd = {"broker-1": BUCKETS | {"delayedDeliveryMaxNumBuckets": "3"}}
    with special_cluster(brokers=2, bookies=1, member_conf=odd) as cluster, ExitStack() as stack:
        setup = Setup(cluster, _sidecars(cluster, tmp_path_factory.mktemp("sidecars"), stack).start(), stack)
        topic = setup.topic(stack)
        topic.subscribe("s", SHARED)
        topic.send(5, now_ms() + 3_600_000)
        topic.unload()
        bucket = Damaged(setup, topic, "s").sound(0)
        assert setup.check(topic) == {("unusable-setting", None, None), ("tracker-downgrade", "s", bucket)}
        assert setup.plan(topic)["actions"] == []
