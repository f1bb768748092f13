"""What the brokers that have topics loaded report of the ledgers they use, without asking for topics that are not.

``GET /admin/v2/broker-stats/bookieops`` names exactly the persistent topics a broker has loaded at that moment
(``BookieClientStatsGenerator.generate`` walks ``BrokerService.forEachTopic``); only those are asked for their
``internalStats``, at the very broker that listed them, and a redirect is not followed.

A listed topic of which its broker then knows nothing (404) was deleted in between, or its namespace is being deleted:
that broker does not have it loaded any more, and its nodes, which the caller reads afterwards, say what is left of it.

Windows that remain, and why they are harmless: a topic may be unloaded between the two requests, and ``internalStats``
then loads it again, with a view that is right; a topic that is just being loaded is listed only when it is ready, and a
broker that loads it reads the metadata the caller compares afterwards; a topic that moves between two brokers while
they are asked is caught by the second round. Stores that are managed ledgers without a topic
(``__transaction_log_N``, ``...__transaction_pending_ack``) are loaded nowhere in this sense: their metadata names all
of their ledgers, because they are never compacted and have no schema.
"""

import zlib
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pulsar_sidecar.adapters.pulsar.rest.admin_rest import AdminRest, Broker, json_object, live_brokers, topic_path
from pulsar_sidecar.adapters.pulsar.rest.topic_stats import parse_deduplication_status, parse_internal_stats
from pulsar_sidecar.ledger_ownership.paths import LOCAL_POLICIES, POLICIES
from pulsar_sidecar.model.errors import NotFoundError, PermanentError, TemporaryError
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import TopicInternalStats

_LOADED_TOPICS_PATH = "/admin/v2/broker-stats/bookieops"
_ROUNDS = 2
_MAX_THREADS = 8
_FULL_RANGE = ("0x00000000", "0xffffffff")

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class BrokerLiveOwners:
    """`ledger_deletion.ports.LiveOwners` over the brokers registered in the metadata store.

    Every request goes to a broker's own address; ``rest`` must be able to reach all of them. Needs the role of a
    superuser where authorization is on, as ``broker-stats`` does.
    """

    def __init__(self, rest: AdminRest, store: MetadataStore) -> None:
        self._rest = rest
        self._store = store
        # Kept, because every thread keeps its connections.
        self._threads = ThreadPoolExecutor(_MAX_THREADS, "live-owners")

    def close(self) -> None:
        """Let questions that are asked end; idempotent."""
        self._threads.shutdown()

    def views(self, topics: Collection[TopicName]) -> Mapping[TopicName, TopicInternalStats]:
        return self._of_each(self._view, self._loaded(frozenset(topics)).items())

    def loaded_by(self, topic: TopicName) -> str | None:
        """`ledger_ownership.ports.LoadedTopics`."""
        broker = self._loaded(frozenset({topic})).get(topic)
        return None if broker is None else broker.broker_id

    def statuses(self, topics: Sequence[TopicName], most: int) -> Mapping[TopicName, str]:
        """`deduplication.inspection.policy_changes.RunningDeduplication`."""
        loaded = self._loaded(frozenset(topics))
        asked = [(topic, loaded[topic]) for topic in topics if topic in loaded][:most]
        return self._of_each(self._status, asked)

    def owner_url(self, topic: TopicName) -> str | None:
        boundaries = read_boundaries(self._store, topic.namespace)
        if boundaries is None:
            return None
        path = ownership_path(topic, boundaries)
        node = self._store.read(path)
        if node is not None:
            return owning_url(node.data, topic)
        brokers = [broker for broker in live_brokers(self._store) if broker.extensible]
        bundle = path.removeprefix("/namespace/")
        owners = self._in_parallel(lambda broker: (broker, bundle in self._owned(broker)), brokers)
        return next((broker.web_service_urls[0] for broker, owns in owners if owns), None)

    def _loaded(self, wanted: frozenset[TopicName]) -> Mapping[TopicName, Broker]:
        """Where those of them are that a broker has loaded."""
        if not wanted:
            return {}
        brokers = live_brokers(self._store)
        if not brokers:
            raise TemporaryError("no broker is registered in the metadata store; try again when one is up")
        loaded: dict[TopicName, Broker] = {}
        for _ in range(_ROUNDS):
            listed = self._in_parallel(lambda broker: (broker, self._listed(broker)), brokers)
            missing = wanted - loaded.keys()
            loaded |= {topic: broker for broker, names in listed for topic in missing if str(topic) in names}
            if loaded.keys() == wanted:
                break
        if set(brokers) != set(live_brokers(self._store)):
            raise TemporaryError("brokers came or went while they were asked for their topics; try again")
        return loaded

    def _listed(self, broker: Broker) -> frozenset[str]:
        document = self._demand(broker, _LOADED_TOPICS_PATH)
        if not isinstance(document, dict) or not all(isinstance(names, dict) for names in document.values()):
            raise TemporaryError(f"broker {broker.broker_id} did not list its loaded topics; try again")
        return frozenset(name for names in document.values() for name in names)

    def _view(self, topic: TopicName, broker: Broker) -> TopicInternalStats:
        document = self._ask(broker, topic_path(topic, "/internalStats"), {"authoritative": "true"})
        return parse_internal_stats(document, topic, broker.broker_id)

    def _status(self, topic: TopicName, broker: Broker) -> str:
        params = {"authoritative": "true", "excludePublishers": "true"}
        return parse_deduplication_status(self._ask(broker, topic_path(topic, "/stats"), params), topic)

    def _owned(self, broker: Broker) -> frozenset[str]:
        clusters = self._demand(broker, "/admin/v2/clusters")
        if not isinstance(clusters, list):
            raise TemporaryError(f"broker {broker.broker_id} did not list its clusters; try again")
        listed: frozenset[str] = frozenset()
        for cluster in clusters:
            path = f"/admin/v2/brokers/{cluster}/{broker.broker_id}/ownedNamespaces"
            listed |= owned_bundles(self._demand(broker, path), broker.broker_id)
        return listed

    def _demand(self, broker: Broker, path: str) -> object:
        """Return what every broker has."""
        try:
            return self._ask(broker, path, {})
        except NotFoundError as error:
            raise TemporaryError(f"{path} at broker {broker.broker_id}: {error}") from error

    def _ask(self, broker: Broker, path: str, params: Mapping[str, str]) -> object:
        failure: TemporaryError | None = None
        for url in self._rest.reachable(broker.web_service_urls):
            try:
                return self._rest.get_exactly(url, path, params)
            except TemporaryError as error:
                failure = error
            except NotFoundError:
                raise
            except PermanentError as error:
                # The sidecar's role may not ask, say: no verdict on any ledger follows from it.
                raise TemporaryError(f"{path} at broker {broker.broker_id}: {error}") from error
        raise failure or TemporaryError(f"broker {broker.broker_id} has no address that the sidecar may use")

    def _of_each(
        self, ask: Callable[[TopicName, Broker], _Result], loaded: Iterable[tuple[TopicName, Broker]]
    ) -> dict[TopicName, _Result]:
        """Return the answers about topics that are still there."""

        def answer(pair: tuple[TopicName, Broker]) -> _Result | None:
            try:
                return ask(*pair)
            except NotFoundError:
                return None

        pairs = list(loaded)
        answers = zip(pairs, self._in_parallel(answer, pairs), strict=True)
        return {topic: found for (topic, _), found in answers if found is not None}

    def _in_parallel(self, work: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
        found = list(items)
        if len(found) < 2:
            return [work(item) for item in found]
        return list(self._threads.map(work, found))


def owning_url(data: bytes, topic: TopicName) -> str:
    """The web service URL in a bundle's ownership node (``NamespaceEphemeralData``)."""
    document = json_object(data, f"the ownership of {topic}'s bundle")
    url = document.get("httpUrl") or document.get("httpUrlTls")
    if not isinstance(url, str):
        raise TemporaryError(f"the owner of {topic}'s bundle names no web service URL; try again")
    return url.rstrip("/")


def owned_bundles(document: object, broker_id: str) -> frozenset[str]:
    """The active bundles in an ``ownedNamespaces`` answer, as ``namespace/range``."""
    if not isinstance(document, dict):
        raise TemporaryError(f"broker {broker_id} did not list the bundles it owns; try again")
    return frozenset(name for name, status in document.items() if isinstance(status, dict) and status.get("is_active"))


# --- bundles, computed as brokers compute them: ``NamespaceBundleFactory``, ``NamespaceBundles`` -------------------


def bundle_range(topic: TopicName, boundaries: tuple[str, ...]) -> str:
    """As ``0xa0000000_0xb0000000``, by the CRC-32 of the full name; closed below and open above, except the last."""
    values = [int(boundary, 16) for boundary in boundaries]
    position = zlib.crc32(str(topic).encode("utf-8"))
    index = min(bisect_right(values, position) - 1, len(values) - 2)
    return f"0x{values[index]:08x}_0x{values[index + 1]:08x}"


def read_boundaries(store: MetadataStore, namespace: str) -> tuple[str, ...] | None:
    """The namespace's bundle boundaries; None when there is no such namespace.

    A namespace that was never loaded has them in its policies only, one without any has the full range.
    """
    local, policies = store.read_many([f"{LOCAL_POLICIES}/{namespace}", f"{POLICIES}/{namespace}"])
    if local is None and policies is None:
        return None
    for node in (local, policies):
        found = _boundaries(node.data, namespace) if node is not None else None
        if found is not None:
            return found
    return _FULL_RANGE


def ownership_path(topic: TopicName, boundaries: tuple[str, ...]) -> str:
    """The ephemeral node that names the owning broker (``OwnershipCache``, modular load manager)."""
    return f"/namespace/{topic.namespace}/{bundle_range(topic, boundaries)}"


def _boundaries(data: bytes, namespace: str) -> tuple[str, ...] | None:
    bundles = json_object(data or b"{}", f"the bundles of namespace {namespace}").get("bundles") or {}
    try:
        found = tuple(f"0x{int(str(boundary), 16):08x}" for boundary in bundles.get("boundaries") or ())
    except (ValueError, AttributeError, TypeError) as error:
        raise TemporaryError(f"the bundles of namespace {namespace} cannot be read; try again") from error
    return found if len(found) > 1 else None
