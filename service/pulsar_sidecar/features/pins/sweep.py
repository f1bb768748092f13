"""Sweep of topics that no broker has loaded: their untrimmed ledgers past retention.

Invariants: a search loads no topic. A trim judges the topic anew, and names it in the metadata store before it loads
it: if this sidecar is killed, the one that trims next unloads it. Brokers alone delete ledgers.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Final

from pulsar_sidecar.features.pins.facts import NOTHING, Retention, TopicFacts, UnownedBundle
from pulsar_sidecar.features.pins.gathering import Sources, facts_of
from pulsar_sidecar.features.pins.obstacles import LoadingPolicies, left_by_brokers, obstacle_to
from pulsar_sidecar.features.pins.ports import BrokerUsage, TopicTrimming
from pulsar_sidecar.features.pins.reading import listed_bytes
from pulsar_sidecar.features.pins.results import Obstacle, TrimmedTopic, TrimState, UnloadedTopic, UnloadedTopics
from pulsar_sidecar.model.clocks import attempts
from pulsar_sidecar.model.errors import AlreadyExistsError, InvalidInputError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.ownership.paths import ledger_path, managed_ledger_path
from pulsar_sidecar.ownership.references import managed_ledger_references
from pulsar_sidecar.ownership.stored_topics import StoredTopics
from pulsar_sidecar.reports.formatting import format_count

_LEASE: Final = "/pulsar-sidecar/retention-sweep/lease"
_LOADED: Final = "/pulsar-sidecar/retention-sweep/loaded"
_DEADLINE_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.1


class RetentionSweep:
    """Sweep of unloaded topics past their retention, which trims one at a time."""

    def __init__(
        self,
        sources: Sources,
        on_loading: Callable[[TopicName], LoadingPolicies | Unreadable],
        busiest: Callable[[], BrokerUsage],
        brokers: TopicTrimming,
    ) -> None:
        """Initialise.

        Args:
            sources: readers of topics' facts.
            on_loading: returns the policies that brokers apply to a partition, or a topic without, once it is loaded.
            busiest: returns the most used resource of all live brokers; may raise `TemporaryError`.
            brokers: the brokers, which load and trim topics.
        """
        self._sources, self._on_loading, self._busiest, self._brokers = sources, on_loading, busiest, brokers
        self._topics = StoredTopics(sources.store)

    def find(self, scope: TopicName | str | None, after: str | None, limit: int) -> UnloadedTopics:
        """Return the next page of a topic, a namespace, a tenant, or of all topics, by name.

        Raises:
            NotFoundError: there is no such topic, namespace or tenant.
            TemporaryError: the metadata store or the brokers could not be reached.
        """
        read_ms, names = self._sources.clock.now_ms(), self._names(scope)
        begin = 0 if after is None else bisect_right(names, after, key=str)
        page = names[begin : begin + limit]
        loaded = self._sources.views.loaded(page)
        asked = [topic for topic in page if topic not in loaded]
        nodes = self._sources.store.read_many([managed_ledger_path(topic.managed_ledger_name) for topic in asked])
        sizes = [None if node is None else listed_bytes(node.data) for node in nodes]
        unreadable = [topic for topic, node, size in zip(asked, nodes, sizes, strict=True) if node and size is None]
        readable = [topic for topic, size in zip(asked, sizes, strict=True) if size is not None]
        found = self._found(readable)
        remaining = len(names) - begin - len(page)
        return UnloadedTopics(
            read_ms=read_ms,
            examined=len(page),
            loaded=len(loaded),
            topics=tuple(found),
            unreadable=tuple(map(str, unreadable)),
            after=str(page[-1]) if remaining else None,
            remaining=remaining,
        )

    def _found(self, topics: Sequence[TopicName]) -> Iterator[UnloadedTopic]:
        policies = cache(self._on_loading)
        for facts in facts_of(self._sources, topics, {}):
            if (found := _unloaded(facts, policies)) is not None:
                yield found

    def trim(self, topic: TopicName, max_load_percent: float) -> TrimmedTopic:
        """Load a topic past its retention, have its broker trim it, and unload it again.

        One call at a time, of all sidecars. It first unloads the topic that a killed sidecar may have left loaded.

        Raises:
            InvalidInputError: the topic has partitions, or is a broker's own.
            NotFoundError: there is no such topic.
            TemporaryError: another call is running, or the metadata store or the brokers could not be reached.
            OutcomeUnknownError: a broker's response was lost; the next call continues.
        """
        if topic.is_system_topic or self._topics.places_of(topic) != [topic]:
            raise InvalidInputError(f"{topic} is a broker's own, or has partitions; name one partition")
        store = self._sources.store
        try:
            store.create(_LEASE, str(topic).encode(), ephemeral=True)
        except AlreadyExistsError as error:
            raise TemporaryError("another sweep is trimming a topic, or has just been killed; try again") from error
        try:
            return self._trim(topic, max_load_percent)
        finally:
            store.delete(_LEASE)

    def _trim(self, topic: TopicName, max_load_percent: float) -> TrimmedTopic:
        name, left_loaded = str(topic), self._sources.store.read(_LOADED)
        if left_loaded is not None:
            self._unload(parse_topic_name(left_loaded.data.decode()))
        for facts in facts_of(self._sources, [topic]):
            if facts.loaded_by is not None:
                return TrimmedTopic(name, TrimState.LOADED, f"{facts.loaded_by} has loaded it, and trims it")
            found = _unloaded(facts, self._on_loading)
            if found is None:
                break
            if found.obstacle is not None:
                return TrimmedTopic(name, TrimState.OBSTACLE, f"{found.obstacle}: {found.detail}")
            usage = self._busiest()
            if usage.percent > max_load_percent:
                seen = f"broker {usage.broker} uses {usage.percent:.0f} % of its {usage.resource}"
                return TrimmedTopic(name, TrimState.BROKERS_BUSY, f"{seen}, more than {max_load_percent:.0f} %")
            self._sources.store.create(_LOADED, name.encode())
            self._brokers.trim(topic)
            gone = self._wait_for(topic, found.ledger_ids)
            kept = "" if self._unload(topic) else "it stays loaded, because clients connected to it"
            freed = sum((each.bytes for each in facts.ledgers if each.ledger_id in gone), NOTHING)
            waits = len(found.ledger_ids) - len(gone)
            return TrimmedTopic(
                topic=name,
                state=TrimState.UNFINISHED if waits else TrimState.TRIMMED,
                detail=f"{format_count(waits, 'ledger')} not deleted in {_DEADLINE_SECONDS:.0f} s" if waits else kept,
                ledgers=len(gone),
                bytes=freed.once,
                on_bookies_bytes=freed.on_bookies,
            )
        return TrimmedTopic(name, TrimState.NOTHING_LEFT, "no ledger is past its retention")

    def _wait_for(self, topic: TopicName, ids: Sequence[int]) -> frozenset[int]:
        """Return those of these ledgers that are deleted, once all of them are, or at the deadline."""
        gone: frozenset[int] = frozenset()
        paths = [ledger_path(LedgerId(each), self._sources.ledgers_root) for each in ids]
        for _ in attempts(self._sources.clock, _DEADLINE_SECONDS, _PAUSE_SECONDS):
            listed, *nodes = self._sources.store.read_many([managed_ledger_path(topic.managed_ledger_name), *paths])
            named = {} if listed is None else managed_ledger_references(listed.data).ledgers
            gone = frozenset(each for each, node in zip(ids, nodes, strict=True) if node is None and each not in named)
            if len(gone) == len(ids):
                break
        return gone

    def _unload(self, topic: TopicName) -> bool:
        """Unload the topic that the sweep has loaded; return False if it has clients now, and so stays loaded."""
        is_loaded = bool(self._sources.views.loaded([topic]))
        has_clients = is_loaded and self._brokers.clients(topic).count > 0
        if is_loaded and not has_clients:
            self._brokers.unload(topic)
        self._sources.store.delete(_LOADED)
        return not has_clients

    def _names(self, scope: TopicName | str | None) -> list[TopicName]:
        if isinstance(scope, TopicName):
            places = iter(self._topics.places_of(scope))
        else:
            places = self._topics.all_places() if scope is None else self._topics.places_below(scope)
        return sorted((topic for topic in places if not topic.is_system_topic), key=str)


def _unloaded(facts: TopicFacts, policies: Callable[[TopicName], LoadingPolicies | Unreadable]) -> UnloadedTopic | None:
    """Return the ledgers past retention; of unowned bundles as if there were no retention, an upper bound."""
    unowned = facts.retention if isinstance(facts.retention, UnownedBundle) else None
    pin = left_by_brokers(facts if unowned is None else replace(facts, retention=Retention()))
    if pin is None:
        return None
    if unowned is None:
        obstacle, detail = obstacle_to(facts, policies(facts.topic.base)) or (None, "")
    else:
        obstacle, detail = Obstacle.UNOWNED_BUNDLE, f"at most, because {unowned.reason}"
    return UnloadedTopic(
        topic=str(facts.topic),
        ledgers=len(pin.ledgers),
        ledger_ids=tuple(sorted(pin.ledgers)),
        bytes=pin.frees.once,
        on_bookies_bytes=pin.frees.on_bookies,
        obstacle=obstacle,
        detail=detail,
    )
