"""Delayed messages cancelled on a real cluster while other clients consume, brokers move and everybody is killed.

After each story: nothing that was told to be cancelled was delivered, and everything else was delivered once.
"""

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from service.model.names import parse_topic_name
from tests.cluster.delays import KEY_SHARED, SHARED, DelayedTopic, Deliveries, await_rest, now_ms
from tests.cluster.patience import until
from tests.cluster.plugin import ClusterFactory
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import SidecarProcess, Sidecars

pytestmark = pytest.mark.timeout(400)

CANCELLING = {
    "topic_two_phase_deletion_enabled": "true",
    "delayed_message_cancelling_enabled": "true",
    "delayed_message_reassert_in_seconds": 2,
}
BUCKETS = {
    "delayedDeliveryTrackerFactoryClassName": "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory",
    "delayedDeliveryMinIndexCountPerBucket": "50",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "20",
    "managedLedgerMaxEntriesPerLedger": "100",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
FAST_SESSIONS = {"metadataStoreSessionTimeoutMillis": "10000"}


class Stage:
    """A cluster, a sidecar on it, and topics."""

    def __init__(self, cluster: ClusterUnderTest, sidecars: Sidecars) -> None:
        self.cluster = cluster
        self.sidecars = sidecars
        self.sidecar = sidecars.start(**CANCELLING)

    @contextmanager
    def topic(self) -> Iterator[DelayedTopic]:
        name = f"persistent://public/default/delays-{uuid.uuid4().hex[:8]}"
        topic = DelayedTopic(self.cluster.addresses, parse_topic_name(name))
        try:
            yield topic
        finally:
            topic.close()


@contextmanager
def staged(cluster: ClusterUnderTest, directory: Path) -> Iterator[Stage]:
    sidecars = Sidecars(cluster.addresses, directory)
    try:
        yield Stage(cluster, sidecars)
    finally:
        sidecars.close()


@pytest.fixture(scope="module")
def stage(cluster: ClusterUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(cluster, tmp_path_factory.mktemp("sidecars")) as opened:
        yield opened


def check(deliveries: Deliveries, everything: set[int], cancelled: set[int]) -> None:
    assert not deliveries.numbers & cancelled, f"cancelled and delivered: {sorted(deliveries.numbers & cancelled)[:20]}"
    assert deliveries.numbers == everything - cancelled


# --- in every run --------------------------------------------------------------------------------------------------


def test_a_random_half_is_cancelled_on_shared_and_key_shared_across_an_unload(stage: Stage) -> None:
    with stage.topic() as topic:
        topic.subscribe("shared", SHARED)
        topic.subscribe("keyed", KEY_SHARED)
        with topic.consuming("shared", SHARED) as shared, topic.consuming("keyed", KEY_SHARED) as keyed:
            due = now_ms() + 9_000
            sent = topic.send(600, due)
            chosen = random.Random(1).sample(sent, 300)
            verdicts = topic.cancel_all(stage.sidecar, chosen)
            assert all(one["cancelled"] and len(one["verdicts"]) == 2 for one in verdicts), verdicts[:3]
            assert Counter(proof["proof"] for one in verdicts for proof in one["verdicts"]) == {"ACKED": 600}
            topic.unload()
            everything, cancelled = {one.number for one in sent}, {one.number for one in chosen}
            for deliveries in (shared, keyed):
                await_rest(deliveries, everything - cancelled, due)
                check(deliveries, everything, cancelled)
                assert deliveries.repeated == {}
        assert topic.proofs(stage.sidecar, chosen[0]) == {"EXPIRED": 2}


def test_what_was_persisted_outlives_the_kill_of_its_broker_and_its_sidecar(stage: Stage) -> None:
    with stage.topic() as topic:
        topic.subscribe("s", SHARED)
        due = now_ms() + 30_000
        sent = topic.send(40, due)
        answer = topic.cancel(stage.sidecar, sent[3], wait="persisted")
        assert (answer.status_code, answer.headers["X-Pulsar-Sidecar-Proof"]) == (204, "PERSISTED")
        verdicts = topic.cancel_all(stage.sidecar, sent[10:20], wait="persisted")
        assert {proof["proof"] for one in verdicts for proof in one["verdicts"]} == {"PERSISTED"}
        owner = topic.owner(stage.cluster.addresses)
        stage.cluster.kill(owner)
        stage.sidecar.kill()
        stage.cluster.restart(owner)
        stage.sidecar.restart()
        with topic.consuming("s", SHARED) as deliveries:
            cancelled = {3, *range(10, 20)}
            await_rest(deliveries, set(range(40)) - cancelled, due, 40)
            check(deliveries, set(range(40)), cancelled)
            assert deliveries.repeated == {}
        stage.sidecar.wait_until_ready()
        until(lambda: topic.proofs(stage.sidecar, sent[3]) in ({"EXPIRED": 1}, {}), "the cancellation has ended")


def test_a_partitioned_topic_is_cancelled_on_by_one_call_and_by_what_messages_are(stage: Stage) -> None:
    with stage.topic() as topic:
        url = f"{topic.urls[0]}{topic.path}/partitions"
        assert requests.put(url, json=3, timeout=30).ok
        topic.subscribe("s", SHARED)
        due = now_ms() + 11_000
        sent = topic.send(60, due)
        assert len({one.partition for one in sent}) == 3
        assert topic.cancel(stage.sidecar, sent[0]).status_code == 204
        assert topic.cancel(stage.sidecar, sent[1], subscriptionNames="nobody").status_code == 404
        found = stage.sidecar.call("POST", f"{topic.path}/delayedMessages/preview", {"properties": {"group": "7"}})
        assert found["count"] == 6
        body = {**found["selection"], "hash": found["hash"]}
        answer = stage.sidecar.request("POST", f"{topic.path}/delayedMessages/cancel", body)
        assert answer.text.count('"cancelled":true') == 6
        assert stage.sidecar.request("POST", f"{topic.path}/delayedMessages/cancel", body).status_code == 409
        cancelled = {0, *range(7, 60, 10)}
        with topic.consuming("s", SHARED) as deliveries:
            await_rest(deliveries, set(range(60)) - cancelled, due)
            check(deliveries, set(range(60)), cancelled)


# --- in a full run -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["in-memory", "buckets"])
def thorough(
    request: pytest.FixtureRequest,
    special_cluster: ClusterFactory,
    full_run: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stage]:
    """Both delayed delivery trackers."""
    conf = {**FAST_SESSIONS, **(BUCKETS if request.param == "buckets" else {})}
    with (
        special_cluster(brokers=2, broker_conf=conf) as own,
        staged(own, tmp_path_factory.mktemp("sidecars")) as opened,
    ):
        yield opened


def test_a_message_is_expedited_and_another_rescheduled(thorough: Stage) -> None:
    with thorough.topic() as topic:
        topic.subscribe("s", SHARED)
        due = now_ms() + 12_000
        first, second, third = topic.send(3, due)
        with topic.consuming("s", SHARED) as deliveries:
            place = {"ledgerId": first.ledger_id, "entryId": first.entry_id, "deliverAt": due}
            thorough.sidecar.call("POST", f"{topic.path}/expediteDelayedMessage", place)
            until(lambda: 0 in deliveries.numbers, "it is delivered now", 6)
            assert now_ms() < due - 2_000
            moved = {"ledgerId": second.ledger_id, "entryId": second.entry_id, "newDeliverAt": due + 4_000}
            answer = thorough.sidecar.call("POST", f"{topic.path}/rescheduleDelayedMessage", moved)
            assert answer["outcome"]["cancelled"]
            await_rest(deliveries, {0, 1, 2}, due + 4_000)
            assert deliveries.repeated == {}
            assert deliveries.times[1][0] >= due + 4_000 - 1_100
            assert third.number in deliveries.numbers


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED], ids=["shared", "key-shared"])
def test_a_hundred_thousand_with_a_random_half_cancelled(thorough: Stage, kind: object) -> None:
    with thorough.topic() as topic:
        topic.subscribe("s", kind)  # type: ignore[arg-type]
        due = now_ms() + 120_000
        sent = topic.send(100_000, due)
        # Every other message of a random order would be 50,000 holes, five times what a cursor stores.
        dice = random.Random(2)
        starts = dice.sample(range(0, 100_000, 20), 2_500)
        chosen = [sent[number] for start in starts for number in range(start, start + 20)]
        with topic.consuming("s", kind) as deliveries:  # type: ignore[arg-type]
            verdicts = topic.cancel_all(thorough.sidecar, chosen)
            assert Counter(one["cancelled"] for one in verdicts) == {True: 50_000}, verdicts[:2]
            topic.unload()
            everything, cancelled = {one.number for one in sent}, {one.number for one in chosen}
            await_rest(deliveries, everything - cancelled, due, 120)
            check(deliveries, everything, cancelled)


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED], ids=["shared", "key-shared"])
def test_the_broker_is_killed_right_after_the_answer(thorough: Stage, kind: object) -> None:
    with thorough.topic() as topic:
        topic.subscribe("s", kind)  # type: ignore[arg-type]
        due = now_ms() + 60_000
        sent = topic.send(200, due)
        with topic.consuming("s", kind) as deliveries:  # type: ignore[arg-type]
            owner = topic.owner(thorough.cluster.addresses)
            verdicts = topic.cancel_all(thorough.sidecar, sent[::2])
            thorough.cluster.kill(owner)
            assert all(one["cancelled"] for one in verdicts)
            thorough.cluster.restart(owner)
            cancelled = {one.number for one in sent[::2]}
            await_rest(deliveries, {one.number for one in sent[1::2]}, due, 60)
            check(deliveries, {one.number for one in sent}, cancelled)


def test_the_sidecar_is_killed_again_and_again_while_it_cancels(thorough: Stage) -> None:
    with thorough.topic() as topic:
        topic.subscribe("s", SHARED)
        due = now_ms() + 90_000
        sent = topic.send(2_000, due)
        other = thorough.sidecars.start(**CANCELLING)
        told: set[int] = set()
        dice = random.Random(3)
        with topic.consuming("s", SHARED) as deliveries:
            for begin in range(0, 2_000, 200):
                victim = thorough.sidecar
                part = sent[begin : begin + 200 : 2]
                told |= _cancel_and_kill(topic, victim, part, dice.uniform(0.0, 0.5))
                victim.restart()
                victim.wait_until_ready()
            owner = topic.owner(thorough.cluster.addresses)
            thorough.cluster.kill(owner)
            other.kill()
            thorough.cluster.restart(owner)
            asked, everything = {one.number for one in sent[::2]}, {one.number for one in sent}
            await_rest(deliveries, everything - asked, due, 60)
        assert not deliveries.numbers & told
        assert everything - asked <= deliveries.numbers
        other.restart()


def _cancel_and_kill(topic: DelayedTopic, victim: SidecarProcess, part: list[object], after: float) -> set[int]:
    told: set[int] = set()

    def request() -> None:
        try:
            verdicts = topic.cancel_all(victim, part)  # type: ignore[arg-type]
        except (AssertionError, OSError, ValueError):
            return
        told.update(one.number for one, said in zip(part, verdicts, strict=False) if said["cancelled"])  # type: ignore[attr-defined]

    asking = threading.Thread(target=request)
    asking.start()
    time.sleep(after)
    victim.kill()
    asking.join()
    return told


def test_cancelling_races_the_due_time_by_the_millisecond(thorough: Stage) -> None:
    with thorough.topic() as topic:
        topic.subscribe("s", SHARED)
        first = now_ms() + 12_000
        dues = [first + step * 5 for step in range(1_000)]
        sent = topic.send(1_000, dues)
        with topic.consuming("s", SHARED) as deliveries:
            proofs: dict[int, str] = {}
            for one in sent:
                # From 1.2 s before the due time to 0.1 s after it, in steps of about a millisecond.
                early = 1_200 - one.number * 1.3
                time.sleep(max(0.0, (one.deliver_at - early - now_ms()) / 1000))
                answer = topic.cancel(thorough.sidecar, one)
                proofs[one.number] = (
                    answer.headers.get("X-Pulsar-Sidecar-Proof", "")
                    if answer.status_code == 204
                    else answer.json()["reason"].split(": ")[1]
                )
            time.sleep(6)
        acked = {number for number, proof in proofs.items() if proof in ("ACKED", "PERSISTED")}
        too_late = {number for number, proof in proofs.items() if proof == "TOO_LATE"}
        raced = {number for number, proof in proofs.items() if proof == "RACED"}
        assert acked | too_late | raced == set(range(1_000)), Counter(proofs.values())
        assert not acked & deliveries.numbers
        assert too_late <= deliveries.numbers
        assert not {number for number in raced if number in deliveries.repeated}


def test_a_cursor_at_its_limit_refuses_and_defers(
    special_cluster: ClusterFactory, full_run: None, tmp_path: Path
) -> None:
    with (
        special_cluster(broker_conf={"managedLedgerMaxUnackedRangesToPersist": "20"}) as own,
        staged(own, tmp_path) as small,
        small.topic() as topic,
    ):
        topic.subscribe("s", SHARED)
        due = now_ms() + 30_000
        sent = topic.send(100, due)
        verdicts = topic.cancel_all(small.sidecar, sent[1::2])
        assert sum(one["cancelled"] for one in verdicts) == 20
        assert {one["verdicts"][0]["cause"] for one in verdicts if not one["cancelled"]} == {
            "acknowledgement state full"
        }
        deferred = topic.cancel_all(small.sidecar, sent[60:62], defer="true")
        cancelled = {one.number for one, said in zip(sent[1::2], verdicts, strict=True) if said["cancelled"]}
        later = {60, 61} if all(one["verdicts"][0]["proof"] != "REFUSED" for one in deferred) else set()
        assert later
        with topic.consuming("s", SHARED) as deliveries:
            await_rest(deliveries, set(range(100)) - cancelled - later, due, 40)
            assert not deliveries.numbers & cancelled
