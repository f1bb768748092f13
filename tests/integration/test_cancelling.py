"""Delayed messages cancelled on a real cluster while other clients consume, brokers move and every process is killed.

After each story: nothing that was reported as cancelled was delivered, and everything else was delivered once.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pulsar
import pytest
import requests

from tests.cluster.buckets import SMALL_BUCKETS
from tests.cluster.cancelling import CANCELLING, Setup, check, set_up
from tests.cluster.choosing import FAST_SESSIONS
from tests.cluster.delays import KEY_SHARED, SHARED, DelayedTopic, Sent, await_rest, now_ms
from tests.cluster.patience import OPERATION_SECONDS, until
from tests.cluster.plugin import ClusterFactory
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import SidecarProcess


@pytest.fixture(scope="module")
def setup(cluster: ClusterUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    with set_up(cluster, tmp_path_factory.mktemp("sidecars")) as opened:
        yield opened


# --- in every run --------------------------------------------------------------------------------------------------


def test_a_random_half_is_cancelled_on_shared_and_key_shared_across_an_unload(setup: Setup) -> None:
    with setup.topic() as topic:
        topic.subscribe("shared", SHARED)
        topic.subscribe("keyed", KEY_SHARED)
        with topic.consuming("shared", SHARED) as shared, topic.consuming("keyed", KEY_SHARED) as keyed:
            due = now_ms() + 15_000
            sent = topic.send(600, due)
            chosen = random.Random(1).sample(sent, 300)
            verdicts = topic.cancel_all(setup.sidecar, chosen)
            assert all(one["cancelled"] and len(one["verdicts"]) == 2 for one in verdicts), verdicts[:3]
            assert Counter(status["proof"] for one in verdicts for status in one["verdicts"]) == {"ACKED": 600}
            topic.unload()
            everything, cancelled = {one.number for one in sent}, {one.number for one in chosen}
            for deliveries in (shared, keyed):
                await_rest(deliveries, everything - cancelled, due)
                check(deliveries, everything, cancelled)
                assert deliveries.repeated == {}
        # An unload this near the due time may leave too little to distinguish EXPIRED from UNKNOWN, on a busy machine.
        until(lambda: not topic.open_statuses(setup.sidecar, chosen[0]), "it is seen to its end")


def test_stored_cancellations_survive_kills_of_broker_and_sidecar(setup: Setup) -> None:
    with setup.topic() as topic:
        topic.subscribe("s", SHARED)
        due = now_ms() + 25_000
        sent = topic.send(40, due)
        answer = topic.cancel(setup.sidecar, sent[3], wait="persisted")
        assert (answer.status_code, answer.headers["X-Pulsar-Sidecar-Proof"]) == (204, "PERSISTED")
        verdicts = topic.cancel_all(setup.sidecar, sent[10:20], wait="persisted")
        assert {status["proof"] for one in verdicts for status in one["verdicts"]} == {"PERSISTED"}
        owner = topic.owner(setup.cluster.addresses)
        setup.cluster.kill(owner)
        setup.sidecar.kill()
        setup.cluster.restart(owner)
        setup.sidecar.restart()
        with topic.consuming("s", SHARED) as deliveries:
            cancelled = {3, *range(10, 20)}
            await_rest(deliveries, set(range(40)) - cancelled, due)
            check(deliveries, set(range(40)), cancelled)
            assert deliveries.repeated == {}
        setup.sidecar.wait_until_ready()
        until(lambda: not topic.open_statuses(setup.sidecar, sent[3]), "the cancellation has ended")


def test_subscriptions_that_come_and_go_between_cancellations_are_seen(setup: Setup) -> None:
    with setup.topic() as topic:
        topic.subscribe("s", SHARED)
        topic.subscribe("keyed", KEY_SHARED)
        sent = topic.send(40, now_ms() + 600_000)
        answers = [topic.cancel(setup.sidecar, one).status_code for one in sent[:20] + sent[:2]]
        assert answers == [204] * 22, "one by one, and the first two again"
        assert topic.backlogs() == {"s": 20, "keyed": 20}
        # A reconciler that visits the subscription while it is deleted makes it anew (docs/delayed-messages.md).
        until(lambda: topic.statuses(setup.sidecar, sent[19])["PERSISTED"] == 2, "what was acknowledged is stored")
        topic.delete_subscription("s")
        gone = topic.cancel(setup.sidecar, sent[20], subscriptionNames="s")
        assert gone.status_code == 404, gone.text
        assert topic.cancel(setup.sidecar, sent[20]).status_code == 204
        earliest = pulsar.InitialPosition.Earliest
        topic.client.subscribe(str(topic.topic), "late", consumer_type=SHARED, initial_position=earliest).close()
        assert topic.cancel(setup.sidecar, sent[21]).status_code == 204
        assert topic.backlogs() == {"keyed": 18, "late": 39}
        topic.unload()
        assert topic.cancel(setup.sidecar, sent[22]).status_code == 204
        until(lambda: topic.backlogs()["keyed"] == 17, "no acknowledgement was lost")


def test_a_cursor_reset_at_the_due_time_never_shows_as_expired(setup: Setup) -> None:
    with setup.topic() as topic:
        for name in ("kept", "moved"):
            topic.subscribe(name, SHARED)
        due = now_ms() + 10_000
        sent = topic.send(20, due)
        with topic.consuming("kept", SHARED) as kept, topic.consuming("moved", SHARED) as moved:
            verdicts = topic.cancel_all(setup.sidecar, sent[:10], wait="persisted")
            assert all(one["cancelled"] for one in verdicts), verdicts[:3]
            time.sleep(max(0, due - 2_500 - now_ms()) / 1000)
            setup.sidecar.freeze()  # so that it does not acknowledge again what the cursor loses
            topic.move_cursor("moved", to_ms=1)
            await_rest(kept, set(range(10, 20)), due)
            until(lambda: moved.numbers == set(range(20)), "what had been cancelled was delivered")
            setup.sidecar.thaw()
            until(lambda: not topic.open_statuses(setup.sidecar, sent[0]), "it is seen to its end")
            assert not kept.numbers & set(range(10))
            for one in sent[:10]:
                statuses = topic.statuses_by_subscription(setup.sidecar, one)
                assert statuses["kept"] == "EXPIRED"
                assert statuses["moved"] == "UNKNOWN", statuses


def test_a_subscription_with_as_many_consumers_as_it_may_have_is_cancelled_on_when_one_leaves(setup: Setup) -> None:
    with setup.topic() as topic:
        topic.subscribe("s", SHARED)
        topic.subscribe("keyed", KEY_SHARED)
        sent = topic.send(2, now_ms() + 600_000)
        topic.limit_consumers(1)
        one = topic.client.subscribe(str(topic.topic), "s", consumer_type=SHARED)
        other = topic.client.subscribe(str(topic.topic), "keyed", consumer_type=KEY_SHARED)
        time.sleep(1)  # brokers receive a topic's policy with a delay
        answer = topic.cancel(setup.sidecar, sent[0])
        assert answer.status_code == 202, answer.text
        assert {one["proof"] for one in answer.json()["verdicts"]} == {"ACCEPTED"}
        assert topic.backlogs() == {"s": 2, "keyed": 2}
        one.close()
        other.close()
        until(lambda: topic.backlogs() == {"s": 1, "keyed": 1}, "it is acknowledged once there is room")


def test_repeated_requests_publish_a_message_again_only_once(setup: Setup) -> None:
    other = setup.sidecars.start(**CANCELLING)
    with setup.topic() as topic:
        topic.subscribe("s", SHARED)
        sent = topic.send(10, now_ms() + 600_000)
        due = now_ms() + 15_000

        def reschedule(number: int, sidecar: SidecarProcess) -> dict[str, Any]:
            return sidecar.call(
                "POST", f"{topic.path}/rescheduleDelayedMessage", {**sent[number].line, "newDeliverAt": due}
            )

        with ThreadPoolExecutor(8) as pool:
            both = (setup.sidecar, other)
            at_once = list(pool.map(lambda number: reschedule(number // 4, both[number % 2]), range(16)))
        for number in range(4):
            asked_again = reschedule(number, other)
            answers = [*at_once[4 * number : 4 * number + 4], asked_again]
            assert {one["proof"] for one in asked_again["outcome"]["verdicts"]} <= {"ACCEPTED", "ACKED", "PERSISTED"}
            assert {one["messageId"] for one in answers} - {None} == {asked_again["messageId"]}, answers
            unknown = [one for one in answers if one["messageId"] is None]
            assert {one["outcome"]["verdicts"][0]["proof"] for one in unknown} <= {"UNKNOWN"}
        assert topic.cancel(setup.sidecar, sent[5]).status_code == 204
        (refused,) = reschedule(5, other)["outcome"]["verdicts"]
        assert (refused["proof"], refused["cause"]) == ("REFUSED", "cancelled before")
        with topic.consuming("s", SHARED) as deliveries:
            await_rest(deliveries, {0, 1, 2, 3}, due)
            assert deliveries.numbers == {0, 1, 2, 3}
            assert deliveries.repeated == {}
        assert topic.backlogs() == {"s": 5}
    other.terminate()


def test_a_partitioned_topic_is_cancelled_on_by_one_call_and_by_selection(setup: Setup) -> None:
    with setup.topic() as topic:
        url = f"{topic.urls[0]}{topic.path}/partitions"
        assert requests.put(url, json=3, timeout=OPERATION_SECONDS).ok
        topic.subscribe("s", SHARED)
        due = now_ms() + 15_000
        sent = topic.send(60, due)
        assert len({one.partition for one in sent}) == 3
        assert topic.cancel(setup.sidecar, sent[0]).status_code == 204
        assert topic.cancel(setup.sidecar, sent[1], subscriptionNames="nobody").status_code == 404
        found = setup.sidecar.call("POST", f"{topic.path}/delayedMessages/preview", {"properties": {"group": "7"}})
        assert found["count"] == 6
        body = {**found["selection"], "hash": found["hash"]}
        answer = setup.sidecar.request("POST", f"{topic.path}/delayedMessages/cancel", body)
        assert answer.text.count('"cancelled":true') == 6
        assert setup.sidecar.request("POST", f"{topic.path}/delayedMessages/cancel", body).status_code == 409
        cancelled = {0, *range(7, 60, 10)}
        with topic.consuming("s", SHARED) as deliveries:
            await_rest(deliveries, set(range(60)) - cancelled, due)
            check(deliveries, set(range(60)), cancelled)


# --- in a full run -------------------------------------------------------------------------------------------------


LARGE_BUCKETS = {
    **SMALL_BUCKETS,
    # 100,000 messages in buckets and ledgers of some dozen each are more than a broker of this machine copes with.
    "delayedDeliveryMinIndexCountPerBucket": "5000",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "500",
    "managedLedgerMaxEntriesPerLedger": "10000",
}


@pytest.fixture(scope="module", params=["in-memory", "buckets"])
def thorough(
    request: pytest.FixtureRequest,
    special_cluster: ClusterFactory,
    full_run: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Setup]:
    """Both delayed delivery trackers."""
    conf = {**FAST_SESSIONS, **(SMALL_BUCKETS if request.param == "buckets" else {})}
    with (
        special_cluster(brokers=2, broker_conf=conf) as own,
        set_up(own, tmp_path_factory.mktemp("sidecars")) as opened,
    ):
        yield opened


@pytest.fixture(scope="module", params=["in-memory", "buckets"])
def roomy(
    request: pytest.FixtureRequest,
    special_cluster: ClusterFactory,
    full_run: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Setup]:
    """Both trackers, the one with buckets closer to its defaults."""
    conf = LARGE_BUCKETS if request.param == "buckets" else {}
    with (
        special_cluster(brokers=2, broker_conf=conf) as own,
        set_up(own, tmp_path_factory.mktemp("sidecars")) as opened,
    ):
        yield opened


def test_a_message_is_expedited_and_another_rescheduled(thorough: Setup) -> None:
    with thorough.topic() as topic:
        topic.subscribe("s", SHARED)
        due = now_ms() + 12_000
        first, second, third = topic.send(3, due)
        with topic.consuming("s", SHARED) as deliveries:
            place = {"ledgerId": first.ledger_id, "entryId": first.entry_id, "deliverAt": due}
            thorough.sidecar.call("POST", f"{topic.path}/expediteDelayedMessage", place)
            until(lambda: 0 in deliveries.numbers, "it is delivered now")
            assert now_ms() < due - 2_000
            moved = {"ledgerId": second.ledger_id, "entryId": second.entry_id, "newDeliverAt": due + 4_000}
            answer = thorough.sidecar.call("POST", f"{topic.path}/rescheduleDelayedMessage", moved)
            assert answer["outcome"]["cancelled"]
            await_rest(deliveries, {0, 1, 2}, due + 4_000)
            assert deliveries.repeated == {}
            assert deliveries.times[1][0] >= due + 4_000 - 1_100
            assert third.number in deliveries.numbers


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED], ids=["shared", "key-shared"])
def test_a_random_half_of_a_hundred_thousand_is_cancelled(roomy: Setup, kind: object) -> None:
    with roomy.topic() as topic:
        topic.subscribe("s", kind)
        due = now_ms() + 120_000
        sent = topic.send(100_000, due)
        # Every other message of a random order would be 50,000 holes, five times what a cursor stores.
        rng = random.Random(2)
        starts = rng.sample(range(0, 100_000, 20), 2_500)
        chosen = [sent[number] for start in starts for number in range(start, start + 20)]
        with topic.consuming("s", kind) as deliveries:
            verdicts = topic.cancel_all(roomy.sidecar, chosen)
            assert Counter(one["cancelled"] for one in verdicts) == {True: 50_000}, verdicts[:2]
            topic.unload()
            everything, cancelled = {one.number for one in sent}, {one.number for one in chosen}
            await_rest(deliveries, everything - cancelled, due)
            check(deliveries, everything, cancelled)


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED], ids=["shared", "key-shared"])
def test_the_broker_is_killed_right_after_the_answer(thorough: Setup, kind: object) -> None:
    with thorough.topic() as topic:
        topic.subscribe("s", kind)
        due = now_ms() + 60_000
        sent = topic.send(200, due)
        with topic.consuming("s", kind) as deliveries:
            owner = topic.owner(thorough.cluster.addresses)
            verdicts = topic.cancel_all(thorough.sidecar, sent[::2])
            thorough.cluster.kill(owner)
            assert all(one["cancelled"] for one in verdicts)
            thorough.cluster.restart(owner)
            cancelled = {one.number for one in sent[::2]}
            await_rest(deliveries, {one.number for one in sent[1::2]}, due)
            check(deliveries, {one.number for one in sent}, cancelled)


def test_the_sidecar_is_killed_again_and_again_while_it_cancels(thorough: Setup) -> None:
    with thorough.topic() as topic:
        topic.subscribe("s", SHARED)
        due = now_ms() + 90_000
        sent = topic.send(2_000, due)
        other = thorough.sidecars.start(**CANCELLING)
        confirmed: set[int] = set()
        rng = random.Random(3)
        with topic.consuming("s", SHARED) as deliveries:
            for begin in range(0, 2_000, 200):
                victim = thorough.sidecar
                part = sent[begin : begin + 200 : 2]
                confirmed |= _cancel_and_kill(topic, victim, part, rng.uniform(0.0, 0.5))
                victim.restart()
                victim.wait_until_ready()
            owner = topic.owner(thorough.cluster.addresses)
            thorough.cluster.kill(owner)
            other.kill()
            thorough.cluster.restart(owner)
            asked, everything = {one.number for one in sent[::2]}, {one.number for one in sent}
            await_rest(deliveries, everything - asked, due)
        assert not deliveries.numbers & confirmed
        assert everything - asked <= deliveries.numbers
        other.restart()


def _cancel_and_kill(topic: DelayedTopic, victim: SidecarProcess, part: list[object], after: float) -> set[int]:
    confirmed: set[int] = set()

    def request() -> None:
        try:
            verdicts = topic.cancel_all(victim, part)
        except (AssertionError, OSError, ValueError):
            return
        confirmed.update(one.number for one, verdict in zip(part, verdicts, strict=False) if verdict["cancelled"])

    asking = threading.Thread(target=request)
    asking.start()
    time.sleep(after)
    victim.kill()
    asking.join()
    return confirmed


def test_cancelling_races_the_due_time_by_the_millisecond(thorough: Setup) -> None:
    with thorough.topic() as topic:
        topic.subscribe("s", SHARED)
        first = now_ms() + 15_000
        dues = [first + step * 25 for step in range(1_300)]
        sent = topic.send(1_300, dues)
        with topic.consuming("s", SHARED) as deliveries, ThreadPoolExecutor(12) as racers:
            # From 1.2 s before the due time to 0.1 s after it, in steps of a millisecond.
            races = [racers.submit(_status_at, topic, thorough.sidecar, one, one.number - 1_200) for one in sent]
            statuses = {one.number: race.result() for one, race in zip(sent, races, strict=True)}
            by_status: dict[str, set[int]] = {status: set() for status in ("ACKED", "RACED", "TOO_LATE", "NOT_FOUND")}
            for number, status in statuses.items():
                by_status[status].add(number)
            # No other client acknowledges here: what was acknowledged before, or is gone, was delivered. While
            # consumers come and go a thousand times, a broker's bucket tracker delivers up to ten seconds late.
            await_rest(deliveries, by_status["TOO_LATE"] | by_status["NOT_FOUND"], dues[-1])
        assert not by_status["ACKED"] & deliveries.numbers
        assert not {number for number in by_status["RACED"] if number in deliveries.repeated}
        assert by_status["TOO_LATE"], "the last ones were asked for after they were due"


def _status_at(topic: DelayedTopic, sidecar: SidecarProcess, sent: Sent, after_due_ms: int) -> str:
    """Return the response to a late cancellation; the message's ledger may be gone once all of it was delivered."""
    time.sleep(max(0.0, (sent.deliver_at + after_due_ms - now_ms()) / 1000))
    answer = topic.cancel(sidecar, sent)
    if answer.status_code == 204:
        return answer.headers["X-Pulsar-Sidecar-Proof"]
    reason: str = answer.json()["reason"]
    return reason.split(": ")[1]


def test_a_cursor_at_its_limit_refuses_and_defers(
    special_cluster: ClusterFactory, full_run: None, tmp_path: Path
) -> None:
    with (
        special_cluster(broker_conf={"managedLedgerMaxUnackedRangesToPersist": "20"}) as own,
        set_up(own, tmp_path) as small,
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
        cancelled = {one.number for one, verdict in zip(sent[1::2], verdicts, strict=True) if verdict["cancelled"]}
        later = {60, 61} if all(one["verdicts"][0]["proof"] != "REFUSED" for one in deferred) else set()
        assert later
        with topic.consuming("s", SHARED) as deliveries:
            await_rest(deliveries, set(range(100)) - cancelled - later, due)
            assert not deliveries.numbers & cancelled
