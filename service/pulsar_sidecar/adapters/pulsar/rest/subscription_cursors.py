"""Cursors in brokers' memory, and the settings by which brokers write them down."""

import threading
from collections.abc import Mapping
from typing import Final

from pulsar_sidecar.ack_state.cursors import CursorInMemory, TopicCursors
from pulsar_sidecar.ack_state.limits import AckStateLimits
from pulsar_sidecar.adapters.pulsar.rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar.rest.cursor_positions import (
    cursor_progress,
    cursor_stats,
    ledger_lengths,
    position_of_text,
)
from pulsar_sidecar.adapters.pulsar.rest.known_brokers import live_brokers
from pulsar_sidecar.adapters.pulsar.rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName, encode_cursor

_CONFIGURATION_PATH: Final = "/admin/v2/brokers/configuration/runtime"
_REMEMBERED_SECONDS: Final = 30.0
_NOTHING: Final[Mapping[str, str]] = {"excludePublishers": "true"}


class BrokerSubscriptions:
    """`ack_state.ports.Subscriptions`; safe for use by several threads."""

    def __init__(self, rest: AdminRest, store: MetadataStore, clock: Clock) -> None:
        self._rest = rest
        self._store = store
        self._clock = clock
        self._admin = BrokerTopicAdmin(rest)
        self._limits: dict[str | None, tuple[float, AckStateLimits]] = {}
        self._lock = threading.Lock()

    def partitions(self, topic: TopicName) -> int | None:
        return self._admin.partitions(topic)

    def cursors(self, topic: TopicName) -> TopicCursors:
        """See `Subscriptions.cursors`; the statistics are read first, so no cursor is newer than its subscription."""
        stats = self._admin.stats(topic, _NOTHING)
        internal = self._admin.internal_stats(topic)
        subscriptions = stats.get("subscriptions")
        if not isinstance(subscriptions, dict):
            raise TemporaryError(f"a broker does not say which subscriptions {topic} has; try again")
        owner = stats.get("ownerBroker")
        return TopicCursors(
            broker=owner if isinstance(owner, str) else None,
            lengths=ledger_lengths(internal),
            cursors={name: _cursor(internal, name, found) for name, found in subscriptions.items() if _durable(found)},
        )

    def limits(self, broker: str | None) -> AckStateLimits:
        now = self._clock.monotonic_seconds()
        with self._lock:
            read, limits = self._limits.get(broker, (float("-inf"), AckStateLimits()))
        if now - read > _REMEMBERED_SECONDS:
            limits = _limits(self._configuration(broker))
            with self._lock:
                self._limits[broker] = (now, limits)
        return limits

    def _configuration(self, broker: str | None) -> object:
        found = [live for live in live_brokers(self._store) if live.broker_id == broker] if broker else []
        urls = self._rest.reachable(found[0].web_service_urls) if found else []
        if not urls:
            return self._rest.get(_CONFIGURATION_PATH)
        return self._rest.get_exactly(urls[0], _CONFIGURATION_PATH)


def _durable(subscription: object) -> bool:
    return isinstance(subscription, dict) and subscription.get("durable") is not False


def _cursor(internal: Mapping[str, object], name: str, subscription: Mapping[str, object]) -> CursorInMemory:
    cursor = encode_cursor(name)
    found = cursor_stats(internal, cursor)
    kind = subscription.get("type")
    consumers = subscription.get("consumers")
    return CursorInMemory(
        acknowledged=cursor_progress(internal, cursor),
        ranges=_number(found, "totalNonContiguousDeletedMessagesRange"),
        read_position=position_of_text(found.get("readPosition")),
        stored=_stored(found),
        type=kind if isinstance(kind, str) and kind != "None" else None,
        consumers=len(consumers) if isinstance(consumers, list) else 0,
        unacked_messages=_number(subscription, "unackedMessages"),
        delayed_messages=_number(subscription, "msgDelayed"),
        backlog=_number(subscription, "msgBacklog"),
    )


def _stored(cursor: Mapping[str, object]) -> tuple[LedgerId, EntryId] | None:
    ledger_id = _number(cursor, "cursorLedger")
    return (LedgerId(ledger_id), EntryId(_number(cursor, "cursorLedgerLastEntry"))) if ledger_id >= 0 else None


def _limits(configuration: object) -> AckStateLimits:
    if not isinstance(configuration, dict):
        raise TemporaryError("a broker does not tell its configuration; try again")
    return AckStateLimits(
        max_unacked_ranges=_setting(configuration, "managedLedgerMaxUnackedRangesToPersist"),
        max_batch_deleted_indexes=_setting(configuration, "managedLedgerMaxBatchDeletedIndexToPersist"),
        as_long_array=_switched_on(configuration, "managedLedgerPersistIndividualAckAsLongArray")
        and _switched_on(configuration, "managedLedgerUnackedRangesOpenCacheSetEnabled"),
        pause_enabled=_switched_on(configuration, "dispatcherPauseOnAckStatePersistentEnabled"),
    )


def _setting(configuration: Mapping[str, object], name: str) -> int:
    # The runtime configuration holds every value as text.
    text = str(configuration.get(name))
    if not text.removeprefix("-").isdigit():
        raise TemporaryError(f"a broker's configuration lacks the number {name}; try again")
    return int(text)


def _switched_on(configuration: Mapping[str, object], name: str) -> bool:
    return str(configuration.get(name)).lower() == "true"


def _number(document: Mapping[str, object], name: str) -> int:
    value = document.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool):
        raise TemporaryError(f"a broker answered no number as {name}; try again")
    return value
