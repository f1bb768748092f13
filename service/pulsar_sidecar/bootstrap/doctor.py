"""The doctor's examination of a cluster with the service's adapters, for the command and for the log of `serve`.

Invariant: the doctor changes only the sidecar's own node that measures the metadata store's clock.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Final, TypeVar

import structlog

from pulsar_sidecar.adapters.etcd.etcd import EtcdMetadataStore
from pulsar_sidecar.adapters.metadata_stores import store_address
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import VERSION_PATH, AdminRest, Broker, live_brokers
from pulsar_sidecar.adapters.pulsar_rest.broker_configuration import AdminBrokersMetadata, RuntimeConfiguration
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar_topics.deletion_topics import topic_name
from pulsar_sidecar.adapters.pulsar_topics.topics_setup import TopicsSettings, TopicsSetup
from pulsar_sidecar.adapters.pulsar_wire.binary_connections import BinaryConnections, BrokerAddress
from pulsar_sidecar.adapters.zookeeper.four_letter_words import zookeeper_server
from pulsar_sidecar.bootstrap.cluster_access import ClusterAccess, store_tls_of
from pulsar_sidecar.bootstrap.doctor_settings import own_facts
from pulsar_sidecar.features.doctor.checks import examine
from pulsar_sidecar.features.doctor.facts import (
    BookieFacts,
    BrokerFacts,
    BrokersFacts,
    Facts,
    OrError,
    StoreFacts,
)
from pulsar_sidecar.features.doctor.findings import Finding, Level, counted
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic
from pulsar_sidecar.model.clocks import StopSignal
from pulsar_sidecar.model.errors import NotFoundError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import BookieId, EntryId, LedgerId
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.ownership.paths import (
    MANAGED_LEDGERS,
    READ_ONLY_BOOKIES,
    available_bookies_path,
    identity_paths,
    instance_id_path,
    read_only_bookies_path,
)

T = TypeVar("T")
_CONNECT_SECONDS: Final = 3.0
_READ_SECONDS: Final = 5.0
_CLUSTERS: Final = "/admin/clusters"
log = structlog.get_logger("pulsar-sidecar")


def examine_cluster(cluster: ClusterAccess, warnings: Sequence[str]) -> list[Finding]:
    """Examine the whole cluster sequentially; ``warnings`` are those known of the settings already."""
    rest = AdminRest(
        [cluster.settings.web_service_url],
        cluster.credentials,
        cluster.tls,
        store=cluster.store,
        connect_seconds=_CONNECT_SECONDS,
        read_seconds=_READ_SECONDS,
    )
    own = own_facts(cluster.settings, warnings, cluster.clock.now_ms())
    bookies = _result_or_error(partial(_registered_bookies, cluster))
    return examine(Facts(own, _store(cluster), _brokers(cluster, rest), bookies))


def log_examination(cluster: ClusterAccess, ended: StopSignal) -> None:
    """Examine the cluster and log the result, with a line for each warning or failure, unless ``ended`` is set."""
    try:
        findings = examine_cluster(cluster, ())
    except Exception:  # the process works without the doctor
        if not ended.is_set():
            log.exception("doctor failed unexpectedly")
        return
    if ended.is_set():  # adapters closed meanwhile are no finding
        return
    for finding in findings:
        if finding.level in (Level.WARNING, Level.FAILED):
            log.warning("doctor finding", subject=finding.subject, finding=finding.text, remedy=finding.remedy)
    log.info("doctor finished", result=counted(findings), more="pulsar-sidecar doctor")


def _result_or_error(read: Callable[[], T]) -> OrError[T]:
    try:
        return read()
    except SidecarError as error:
        return error


def _failure(read: Callable[[], object]) -> SidecarError | None:
    answer = _result_or_error(read)
    return answer if isinstance(answer, SidecarError) else None


# --- the metadata store ----------------------------------------------------------------------------------------------


def _store(cluster: ClusterAccess) -> StoreFacts:
    store, root, url = cluster.store, cluster.settings.ledgers_root_path, cluster.settings.metadata_store_url
    tls = store_tls_of(cluster.settings)

    report = store.gateway.server if isinstance(store, EtcdMetadataStore) else partial(zookeeper_server, tls=tls)

    def undeletable() -> Sequence[str]:
        return [path for path in (root, MANAGED_LEDGERS) if not store.may_delete_below(path)]

    address = store_address(url)
    return StoreFacts(
        hosts=address.text,
        servers={server: _result_or_error(partial(report, server)) for server in address.servers},
        missing=_result_or_error(partial(missing_nodes, store, root)),
        undeletable=_result_or_error(undeletable),
        ahead_seconds=_result_or_error(lambda: (cluster.clock.now_ms() - store.now_ms()) / 1000),
    )


def missing_nodes(store: MetadataStore, root: str) -> Sequence[str]:
    """Return the nodes of every Pulsar cluster that the store lacks.

    Either identity is enough: ``pulsar standalone`` has a layout, and clusters that were initialised have an id.
    """
    identity = any(store.read_many(identity_paths(root))) or None
    # Not every store has nodes for parents.
    clusters, ledgers = store.children_many([_CLUSTERS, root])
    found = {_CLUSTERS: clusters, root: ledgers, instance_id_path(root): identity}
    return [path for path, there in found.items() if there is None]


# --- brokers ---------------------------------------------------------------------------------------------------------


def _brokers(cluster: ClusterAccess, rest: AdminRest) -> BrokersFacts:
    settings, store = cluster.settings, cluster.store
    addresses = {url: _failure(partial(rest.get_exactly, url, VERSION_PATH)) for url in rest.bases}
    scheme, _, hosts = settings.broker_service_url.partition("://")
    with closing(
        BinaryConnections(cluster.credentials, cluster.tls, cluster.clock, _CONNECT_SECONDS, _READ_SECONDS)
    ) as binary:
        for host in hosts.split(","):
            address = BrokerAddress(f"{scheme}://{host.strip()}")
            addresses[address.url] = _failure(partial(_connect, binary, address))
    metadata = AdminBrokersMetadata(rest, store, settings.metadata_store_url, settings.ledgers_root_path)
    return BrokersFacts(
        addresses=addresses,
        registered=_result_or_error(lambda: [_broker(cluster, rest, broker) for broker in live_brokers(store)]),
        mismatch=_result_or_error(metadata.mismatch),
        own_topics=_result_or_error(lambda: _own_topics(cluster, BrokerTopicAdmin(rest))),
    )


def _connect(connections: BinaryConnections, address: BrokerAddress) -> None:
    connections.open(address).close()


def _broker(cluster: ClusterAccess, rest: AdminRest, broker: Broker) -> BrokerFacts:
    url = next(iter(rest.reachable(broker.web_service_urls)), None)
    if url is None:
        failure = TemporaryError("it has no address with the scheme of webServiceUrl; use the other scheme there")
        return BrokerFacts(broker.broker_id, failure, failure)
    answer = _result_or_error(lambda: rest.get_exactly_with_headers(url, VERSION_PATH))
    if isinstance(answer, SidecarError):
        return BrokerFacts(broker.broker_id, answer, answer)
    version, headers = answer
    ahead = _result_or_error(lambda: _ahead_seconds(headers.get("Date"), cluster.store.now_ms()))
    return BrokerFacts(
        broker.broker_id,
        version if isinstance(version, str) and version else None,
        _result_or_error(lambda: RuntimeConfiguration.of(rest, url).settings),
        None if isinstance(ahead, SidecarError) else ahead,
    )


def _ahead_seconds(date: str | None, now_ms: int) -> float | None:
    """Return the lead of the clock that wrote ``date`` just now, in seconds; dates have whole seconds."""
    try:
        return None if date is None else parsedate_to_datetime(date).timestamp() + 0.5 - now_ms / 1000
    except ValueError:
        return None


def _own_topics(cluster: ClusterAccess, admin: BrokerTopicAdmin) -> Sequence[str] | None:
    if not admin.partitions(topic_name(DeletionTopic.PENDING)):
        return None
    setup = TopicsSetup(admin, topic_name, TopicsSettings(), cluster.clock)
    try:
        setup.check_conditions()
    except NotFoundError:  # a sidecar is creating them
        return None
    return setup.warnings


# --- bookies ---------------------------------------------------------------------------------------------------------


def _registered_bookies(cluster: ClusterAccess) -> Sequence[BookieFacts]:
    root = cluster.settings.ledgers_root_path
    writable, read_only = cluster.store.children_many([available_bookies_path(root), read_only_bookies_path(root)])
    names = [(name, False) for name in writable or () if name != READ_ONLY_BOOKIES]
    names += [(name, True) for name in read_only or ()]
    return [BookieFacts(name, only, _failure(partial(_ask, cluster, name))) for name, only in names]


def _ask(cluster: ClusterAccess, bookie: str) -> None:
    # Any response will do, even that the entry is missing; reads need no authentication.
    cluster.bookies.read_many(BookieId(bookie), LedgerId(0), [EntryId(0)])
