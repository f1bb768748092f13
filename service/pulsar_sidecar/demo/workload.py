"""Topics with several ledgers, and their deletion over REST by an impatient user."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import requests

LEDGERS_PER_TOPIC: Final = 5
_MESSAGES: Final = 2 * LEDGERS_PER_TOPIC - 1
"""Two messages fill a ledger, so the last one is left half full and open."""

SUBSCRIPTIONS: Final = ("billing", "search", "mail")
"""Each with a cursor ledger of its own: three more ledgers to a topic that must not be forgotten."""

_CREATORS = 8
_DELETERS = 32
_REQUEST_SECONDS = 60
_RECEIVE_SECONDS = 60
"""A client that was connected to a broker that died has to find the next one first."""


@dataclass(frozen=True, slots=True)
class DeletionRun:
    """How the deletion of many topics went at the first try: accepted, and not."""

    accepted: tuple[str, ...]
    failed: tuple[str, ...]


def make_topics(client: Any, web_service_url: str, namespace: str, count: int) -> list[str]:
    """Create topics of `LEDGERS_PER_TOPIC` ledgers and a subscription with acknowledgements; their names."""
    requests.put(
        f"{web_service_url}/admin/v2/namespaces/{namespace}", json={}, timeout=_REQUEST_SECONDS
    ).raise_for_status()
    names = [f"topic-{index:03d}" for index in range(count)]
    with ThreadPoolExecutor(_CREATORS) as pool:
        list(pool.map(lambda name: _make_topic(client, f"persistent://{namespace}/{name}"), names))
    return names


def _make_topic(client: Any, topic: str) -> None:
    consumers = [client.subscribe(topic, subscription) for subscription in SUBSCRIPTIONS]
    producer = client.create_producer(topic, batching_enabled=False)
    for index in range(_MESSAGES):
        producer.send(f"message {index}".encode())
    for consumer in consumers:
        consumer.acknowledge(consumer.receive(timeout_millis=_RECEIVE_SECONDS * 1000))
        consumer.close()
    producer.close()


def delete_topics(url: str, namespace: str, names: Sequence[str], answered: Callable[[], None]) -> DeletionRun:
    """``DELETE`` each topic once, many at a time, calling ``answered`` after each; nothing is repeated.

    A broken connection is a failure like an error's answer.
    """

    def delete(name: str) -> bool:
        accepted = _delete(url, namespace, name)
        answered()
        return accepted

    with ThreadPoolExecutor(_DELETERS) as pool:
        verdicts = list(pool.map(delete, names))
    pairs = list(zip(names, verdicts, strict=True))
    return DeletionRun(tuple(name for name, ok in pairs if ok), tuple(name for name, ok in pairs if not ok))


def delete_again(
    url: str, namespace: str, names: Sequence[str], wait: Callable[[float], None], rounds: int = 40
) -> list[str]:
    """What a user does next: delete again what was refused or broke, until all is accepted; what is left."""
    left = list(names)
    for _ in range(rounds):
        with ThreadPoolExecutor(_DELETERS) as pool:
            done = list(pool.map(lambda name: _delete(url, namespace, name, gone_is_done=True), left))
        left = [name for name, accepted in zip(left, done, strict=True) if not accepted]
        if not left:
            return []
        wait(0.5)
    return left


def _delete(url: str, namespace: str, name: str, *, gone_is_done: bool = False) -> bool:
    try:
        answer = requests.delete(
            f"{url}/admin/v2/persistent/{namespace}/{name}", params={"force": "true"}, timeout=_REQUEST_SECONDS
        )
    except requests.RequestException:
        return False
    return answer.ok or (gone_is_done and answer.status_code == 404)
