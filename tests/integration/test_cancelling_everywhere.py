"""Cancelling where it is less usual: every process dies at once, messages in chunks, old names, brokers that ask for an
identity."""

import time
from collections.abc import Iterator
from typing import Any

import _pulsar
import pulsar
import pytest
import requests

from tests.cluster.cancelling import Setup, check, set_up
from tests.cluster.choosing import FAST_SESSIONS
from tests.cluster.delays import KEY_SHARED, SHARED, DelayedTopic, Sent, await_rest, now_ms
from tests.cluster.patience import until
from tests.cluster.plugin import ClusterFactory
from tests.cluster.tokens import TOKEN_CONF, token

pytestmark = pytest.mark.usefixtures("full_run")


@pytest.fixture(scope="module")
def two(special_cluster: ClusterFactory, full_run: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    with (
        special_cluster(brokers=2, broker_conf=FAST_SESSIONS) as cluster,
        set_up(cluster, tmp_path_factory.mktemp("sidecars")) as setup,
    ):
        yield setup


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED], ids=["shared", "key-shared"])
@pytest.mark.parametrize("wait", ["acked", "persisted"])
def test_broker_and_sidecar_are_killed_together_right_after_the_answer(
    two: Setup, kind: pulsar.ConsumerType, wait: str
) -> None:
    with two.topic() as topic:
        topic.subscribe("s", kind)
        due = now_ms() + 60_000
        sent = topic.send(100, due)
        with topic.consuming("s", kind) as deliveries:
            owner = topic.owner(two.cluster.addresses)
            verdicts = topic.cancel_all(two.sidecar, sent[::2], wait=wait)
            two.cluster.kill(owner)
            two.sidecar.kill()
            assert {proof["proof"] for one in verdicts for proof in one["verdicts"]} == {wait.upper()}
            two.cluster.restart(owner)
            two.sidecar.restart()
            everything, cancelled = {one.number for one in sent}, {one.number for one in sent[::2]}
            await_rest(deliveries, everything - cancelled, due)
            check(deliveries, everything, cancelled)
        two.sidecar.wait_until_ready()


def test_a_message_in_chunks_is_cancelled_as_a_whole(two: Setup) -> None:
    with two.topic() as topic:
        topic.subscribe("s", SHARED)
        due = now_ms() + 25_000
        first, *others = [_send_in_chunks(topic, number, due) for number in range(3)]
        answer = topic.cancel(two.sidecar, first)
        assert (answer.status_code, answer.headers["X-Pulsar-Sidecar-Proof"]) == (204, "ACKED")
        topic.unload()
        with topic.consuming("s", SHARED, 1) as deliveries:
            await_rest(deliveries, {one.number for one in others}, due)
            check(deliveries, {0, 1, 2}, {0})
        backlog = topic.stats()["subscriptions"]["s"]["msgBacklog"]
        assert backlog == 0, "no chunk of the cancelled one is left"


def _send_in_chunks(topic: DelayedTopic, number: int, due: int) -> Sent:
    """Send a message three times as large as an entry may be: its number with much blank space behind it."""
    producer: Any = topic.client.create_producer(
        str(topic.topic), batching_enabled=False, chunking_enabled=True, send_timeout_millis=60_000
    )
    ids: list[_pulsar.MessageId] = []
    builder = _pulsar.MessageBuilder().content(b"%d" % number + b" " * 12 * 1024 * 1024).deliver_at(due)
    producer._producer.send_async(builder.build(), lambda result, found: ids.append(found))
    until(lambda: ids, "the chunked message is stored")
    producer.close()
    return Sent(number, ids[0].ledger_id(), ids[0].entry_id(), ids[0].partition(), due)


def test_a_topic_with_a_name_of_the_old_form(two: Setup) -> None:
    namespace = "public/local/old-form"
    made = requests.put(f"{two.cluster.addresses.web_service_urls[0]}/admin/namespaces/{namespace}", timeout=30)
    assert made.status_code in (204, 409), made.text
    with two.topic(namespace) as topic:
        topic.subscribe("s", SHARED)
        due = now_ms() + 12_000
        sent = topic.send(10, due)
        assert topic.path.startswith("/admin/persistent/")
        assert {topic.cancel(two.sidecar, one).status_code for one in sent[:5]} == {204}
        assert topic.statuses(two.sidecar, sent[0]) in ({"ACKED": 1}, {"PERSISTED": 1})
        with topic.consuming("s", SHARED) as deliveries:
            await_rest(deliveries, set(range(5, 10)), due)
            check(deliveries, set(range(10)), set(range(5)))


def test_brokers_that_ask_for_a_token(
    special_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shown = {"auth_plugin": "token", "auth_params": f"token:{token('admin')}"}
    with (
        special_cluster(broker_conf=TOKEN_CONF) as cluster,
        set_up(cluster, tmp_path_factory.mktemp("sidecars"), **shown) as setup,
        setup.topic() as topic,
    ):
        topic.subscribe("s", SHARED)
        due = now_ms() + 12_000
        sent = topic.send(10, due)
        assert topic.cancel(setup.sidecar, sent[0]).status_code == 204
        assert all(one["cancelled"] for one in topic.cancel_all(setup.sidecar, sent[1:5]))
        with topic.consuming("s", SHARED) as deliveries:
            await_rest(deliveries, set(range(5, 10)), due)
            check(deliveries, set(range(10)), set(range(5)))
        time.sleep(1)
        assert token("admin") not in setup.sidecar.whole_log
