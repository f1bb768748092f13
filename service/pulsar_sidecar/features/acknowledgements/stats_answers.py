"""Completion of brokers' ``stats`` and ``partitioned-stats`` with PIP-299's ``blockedOnAckStatePersistent``.

Invariants: everything else in a response stays as the broker wrote it; an unknown value is null. The sidecar reads
brokers' policies only if a subscription has more ranges than the broker stores: with fewer it is not blocked.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

import msgspec

from pulsar_sidecar.features.acknowledgements.limits import AckStateLimits, PauseSettings, pause_state
from pulsar_sidecar.features.acknowledgements.ports import PausePolicies, SubscriptionStats
from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import SubscriptionType

_KEY: Final = "blockedOnAckStatePersistent"
"""Spelling in which Jackson writes ``isBlockedOnAckStatePersistent``."""
_Document = dict[str, msgspec.Raw]


@decodable
class _Subscription(msgspec.Struct, rename="camel"):
    type: str | None = None
    non_contiguous_deleted_messages_ranges: int | None = None


@decodable
class _Topic(msgspec.Struct, rename="camel"):
    owner_broker: str | None = None


_Blocked = Callable[[str, _Subscription], bool | None]


class PausesInStats:
    """Completion of responses with the key; thread-safe."""

    def __init__(self, subscriptions: SubscriptionStats, policies: PausePolicies) -> None:
        self._subscriptions = subscriptions
        self._policies = policies

    def amended(self, topic: TopicName, body: bytes) -> bytes:
        """Return a broker's response about the topic with the key in each subscription."""
        try:
            document = _read(body)
            partitions = _read(document.get("partitions", _NOTHING))
            found: dict[str, list[bool | None]] = {}
            for name, raw in partitions.items():
                partition = _read(raw)
                for subscription, value in _add(partition, self._by_ranges(topic, raw)).items():
                    found.setdefault(subscription, []).append(value)
                partitions[name] = _written(partition)
            if partitions:
                document["partitions"] = _written(partitions)
            _add(document, self._of_all(topic, body, document, found))
        except msgspec.MsgspecError:
            return body
        return msgspec.json.encode(document)

    def _of_all(
        self, topic: TopicName, body: bytes, document: _Document, found: Mapping[str, list[bool | None]]
    ) -> _Blocked:
        if found:
            return lambda name, _: _any(found.get(name, [None]))
        by_ranges = self._by_ranges(topic, body)
        if "metadata" not in document:  # of one topic
            return by_ranges
        # The response is a sum over partitions that it does not contain: a sum below the limit means each is below it.
        return lambda name, subscription: by_ranges(name, subscription) and None

    def _by_ranges(self, topic: TopicName, stats: bytes | msgspec.Raw) -> _Blocked:
        broker = msgspec.json.decode(stats, type=_Topic).owner_broker

        @cache
        def limits() -> AckStateLimits:
            return self._subscriptions.limits(broker)

        @cache
        def policies() -> PauseSettings:
            return self._policies.policies(topic, broker)

        def blocked(_: str, subscription: _Subscription) -> bool | None:
            kind, ranges = _type(subscription.type), subscription.non_contiguous_deleted_messages_ranges
            try:
                if ranges is None:
                    return None
                if ranges <= limits().max_unacked_ranges or not kind.dispatches_to_many:
                    return False
                return pause_state(kind, ranges, policies(), limits()).blocked
            except SidecarError:
                return None

        return blocked


_NOTHING: Final = msgspec.Raw(b"{}")


def _read(raw: bytes | msgspec.Raw) -> _Document:
    return msgspec.json.decode(raw, type=_Document)


def _written(document: _Document) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(document))


def _add(document: _Document, blocked: _Blocked) -> dict[str, bool | None]:
    """Put the key into each subscription of a topic's statistics, and return the values."""
    subscriptions = _read(document.get("subscriptions", _NOTHING))
    found: dict[str, bool | None] = {}
    for name, raw in subscriptions.items():
        subscription = _read(raw)
        if _KEY not in subscription:  # a broker that has it knows better
            found[name] = blocked(name, msgspec.json.decode(raw, type=_Subscription))
            subscription[_KEY] = msgspec.Raw(msgspec.json.encode(found[name]))
            subscriptions[name] = _written(subscription)
    if found:
        document["subscriptions"] = _written(subscriptions)
    return found


def _any(values: list[bool | None]) -> bool | None:
    if True in values:
        return True
    return None if None in values else False


def _type(text: str | None) -> SubscriptionType:
    try:
        return SubscriptionType(text)
    except ValueError:
        return SubscriptionType.NONE
