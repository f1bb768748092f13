"""Brokers' reports of topics whose delayed messages are cancelled: subscriptions, cursors, policies, brokers' time.

Invariant: requests create nothing; values cached for some seconds (policies, and partitions and subscriptions for
callers that state how old they may be) never decide whether a topic or a subscription exists.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from typing import Final, Generic, TypeVar

from cachetools import LRUCache

from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest, json_object, topic_path
from pulsar_sidecar.adapters.pulsar_rest.broker_configuration import RuntimeConfiguration
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import partitions_in, topic_policy
from pulsar_sidecar.adapters.pulsar_rest.topic_stats import parse_internal_stats, parse_stats
from pulsar_sidecar.backlog.ports import DelayPolicy
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import NotFoundError, SidecarError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import Subscription, TopicInternalStats
from pulsar_sidecar.ownership.paths import POLICIES, managed_ledger_path
from pulsar_sidecar.ownership.references import managed_ledger_references

_RUNTIME_SECONDS: Final = 60.0
_POLICY_SECONDS: Final = 10.0
_CLOCK_SECONDS: Final = 600.0
_MOST_CACHED: Final = 10_000

_LOGGER = logging.getLogger(__name__)

_Value = TypeVar("_Value")


class _RefreshingCache(Generic[_Value]):
    """Cache of values by key, each for a while; safe for use by several threads.

    A value that is read after half its allowed age is refreshed in the background, so that frequent callers never wait.
    """

    def __init__(self, clock: Clock, seconds: float, renewer: Executor) -> None:
        self._clock = clock
        self._renewer = renewer
        self._seconds = seconds
        self._values: LRUCache[object, tuple[float, _Value]] = LRUCache(_MOST_CACHED)
        self._renewing: set[object] = set()
        self._lock = threading.Lock()

    def get(self, key: object, fetch: Callable[[], _Value], seconds: float | None = None) -> _Value:
        """Return the value, at most ``seconds`` old, or as old as the cache allows."""
        oldest = self._seconds if seconds is None else seconds
        with self._lock:
            read, kept = self._values.get(key, (float("-inf"), None))
            age = self._clock.monotonic_seconds() - read
            ahead = oldest / 2 < age < oldest and key not in self._renewing
            if ahead:
                self._renewing.add(key)
        if ahead:
            self._renewer.submit(self._renew, key, fetch)
        return self._fetched(key, fetch) if kept is None or age >= oldest else kept

    def _fetched(self, key: object, fetch: Callable[[], _Value]) -> _Value:
        # The time is taken first: a value is as old as the request.
        now = self._clock.monotonic_seconds()
        value = fetch()
        with self._lock:
            if now >= self._values.get(key, (now, value))[0]:
                self._values[key] = (now, value)
        return value

    def _renew(self, key: object, fetch: Callable[[], _Value]) -> None:
        try:
            self._fetched(key, fetch)
        except SidecarError as error:
            # A caller for whom the value is too old reads again, and gets the error.
            _LOGGER.debug("not renewed: %s", error)
        finally:
            with self._lock:
                self._renewing.discard(key)


class BrokerTopics:
    """`backlog.ports.Topics`; safe for use by several threads."""

    def __init__(self, rest: AdminRest, store: MetadataStore, clock: Clock) -> None:
        self._rest = rest
        self._store = store
        self._clock = clock
        # A thread of its own, which keeps its connections.
        renewer = self._renewer = ThreadPoolExecutor(1, thread_name_prefix="renewing")
        self._partitions: _RefreshingCache[int] = _RefreshingCache(clock, 0.0, renewer)
        self._policies: _RefreshingCache[DelayPolicy] = _RefreshingCache(clock, _POLICY_SECONDS, renewer)
        self._runtime: _RefreshingCache[RuntimeConfiguration] = _RefreshingCache(clock, _RUNTIME_SECONDS, renewer)
        self._subscriptions: _RefreshingCache[Mapping[str, Subscription]] = _RefreshingCache(clock, 0.0, renewer)
        self._ahead = (0, 0.0)

    def close(self) -> None:
        """End the background refresh; idempotent."""
        self._renewer.shutdown(cancel_futures=True)

    def partitions(self, topic: TopicName, *, max_age_seconds: float = 0.0) -> int | None:
        try:
            return self._partitions.get(
                topic, lambda: partitions_in(self._get(topic_path(topic, "/partitions"))), max_age_seconds
            )
        except NotFoundError:
            return None

    def partition_of_ledger(self, topic: TopicName, partitions: int, ledger_id: LedgerId) -> int | None:
        paths = [managed_ledger_path(topic.partition(index).managed_ledger_name) for index in range(partitions)]
        for index, node in enumerate(self._store.read_many(paths)):
            if node is not None and ledger_id in managed_ledger_references(node.data).ledgers:
                return index
        return None

    def subscriptions(self, topic: TopicName, *, max_age_seconds: float = 0.0) -> Mapping[str, Subscription]:
        return self._subscriptions.get(
            topic, lambda: parse_stats(self._get(topic_path(topic, "/stats")), topic).subscriptions, max_age_seconds
        )

    def state(self, topic: TopicName) -> TopicInternalStats:
        return parse_internal_stats(self._get(topic_path(topic, "/internalStats")), topic)

    def delay_policy(self, topic: TopicName) -> DelayPolicy:
        return self._policies.get(topic, lambda: self._read_policy(topic))

    def broker_ahead_ms(self) -> int:
        ahead_ms, seen = self._ahead
        return ahead_ms if self._clock.monotonic_seconds() - seen < _CLOCK_SECONDS else 0

    # --- requests --------------------------------------------------------------------------------------------------

    def _get(self, path: str) -> object:
        document, headers = self._rest.get_with_headers(path)
        self._learn_clock(headers.get("Date"))
        return document

    def _learn_clock(self, date: str | None) -> None:
        """Read a broker's clock from its ``Date``, which is cut to the second: the clock is at least as far ahead."""
        try:
            date_ms = int(parsedate_to_datetime(date or "").timestamp() * 1000)
        except (TypeError, ValueError):
            return
        ahead_ms = date_ms - self._clock.now_ms()
        if ahead_ms > self.broker_ahead_ms():
            self._ahead = (ahead_ms, self._clock.monotonic_seconds())

    def _read_policy(self, topic: TopicName) -> DelayPolicy:
        broker = self._runtime.get(None, lambda: RuntimeConfiguration.of(self._rest))
        if topic.cluster:
            # Brokers have no routes to policies of V1 topics; the namespace's apply (``Policies``).
            node = self._store.read(f"{POLICIES}/{topic.namespace}")
            document = {} if node is None else json_object(node.data, node.path)
            delayed, ttl = document.get("delayed_delivery_policies"), document.get("message_ttl_in_seconds")
        else:
            delayed, ttl = self._policy(topic, "delayedDelivery"), self._policy(topic, "messageTTL")
        policy = delayed if isinstance(delayed, dict) else {}
        ttl_seconds = ttl if isinstance(ttl, int) else broker.number("ttlDurationDefaultInSeconds", 0)
        return DelayPolicy(
            enabled=bool(policy.get("active", broker.flag("delayedDeliveryEnabled", default=True))),
            tick_ms=int(policy.get("tickTime") or broker.number("delayedDeliveryTickTimeMillis", 1000)),
            strict=broker.flag("isDelayedDeliveryDeliverAtTimeStrict"),
            ttl_seconds=ttl_seconds or None,
        )

    def _policy(self, topic: TopicName, name: str) -> object:
        # Policies belong to the whole topic; brokers refuse requests for a partition.
        return topic_policy(self._rest, topic.base, name, {"applied": "true"})
