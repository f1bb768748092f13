"""The doctor's look at a cluster, with the adapters of the service: for the command, and for the log of `serve`.

Invariant: nothing is changed but the node that measures the metadata store's clock, which is the sidecar's own.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Final, TypeVar

import structlog

from pulsar_sidecar.adapters.bookkeeper.bookie_http import BookieHttp
from pulsar_sidecar.adapters.metadata.addressing import parse_metadata_store_url
from pulsar_sidecar.adapters.metadata.four_letter_words import zookeeper_server
from pulsar_sidecar.adapters.metadata.permissions import may_delete_below
from pulsar_sidecar.adapters.pulsar.rest.admin_rest import VERSION_PATH, AdminRest, Broker, live_brokers
from pulsar_sidecar.adapters.pulsar.rest.broker_configuration import (
    AdminBrokersMetadata,
    RuntimeConfiguration,
)
from pulsar_sidecar.adapters.pulsar.rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar.topics.deletion_topics import topic_name
from pulsar_sidecar.adapters.pulsar.topics.topics_setup import TopicsSettings, TopicsSetup
from pulsar_sidecar.adapters.pulsar.wire.binary_connections import BinaryConnections, BrokerAddress
from pulsar_sidecar.bootstrap.cluster_access import ClusterAccess, store_credential_of, store_tls_of
from pulsar_sidecar.bootstrap.doctor_settings import own_facts
from pulsar_sidecar.doctor.checks import examine
from pulsar_sidecar.doctor.facts import (
    BookieFacts,
    BookiesFacts,
    BrokerFacts,
    BrokersFacts,
    Facts,
    OrError,
    StoreFacts,
)
from pulsar_sidecar.doctor.findings import Finding, Level, counted
from pulsar_sidecar.ledger_deletion.ports import DeletionTopic
from pulsar_sidecar.ledger_ownership.paths import (
    MANAGED_LEDGERS,
    READ_ONLY_BOOKIES,
    available_bookies_path,
    identity_paths,
    instance_id_path,
    read_only_bookies_path,
)
from pulsar_sidecar.model.clocks import StopSignal
from pulsar_sidecar.model.errors import NotFoundError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import BookieId, EntryId, LedgerId
from pulsar_sidecar.model.metadata import MetadataStore

T = TypeVar("T")
_CONNECT_SECONDS: Final = 3.0
_READ_SECONDS: Final = 5.0
_CLUSTERS: Final = "/admin/clusters"
log = structlog.get_logger("pulsar-sidecar")


def examine_cluster(cluster: ClusterAccess, warnings: Sequence[str]) -> list[Finding]:
    """Look at everything, one after the other; ``warnings`` are what is known of the settings already."""
    rest = AdminRest(
        [cluster.settings.web_service_url],
        cluster.credentials,
        cluster.tls,
        store=cluster.store,
        connect_seconds=_CONNECT_SECONDS,
        read_seconds=_READ_SECONDS,
    )
    own = own_facts(cluster.settings, warnings, cluster.clock.now_ms())
    return examine(Facts(own, _store(cluster), _brokers(cluster, rest), _bookies(cluster)))


def log_examination(cluster: ClusterAccess, ended: StopSignal) -> None:
    """Look, and log how it is, with a line for everything that is not as it must be; nothing once ``ended`` is set."""
    try:
        findings = examine_cluster(cluster, ())
    except Exception:  # the process works without
        if not ended.is_set():
            log.exception("the doctor could not look at the cluster")
        return
    if ended.is_set():  # what was closed meanwhile is no finding
        return
    for finding in findings:
        if finding.level in (Level.WARNING, Level.FAILED):
            log.warning("doctor", subject=finding.subject, finding=finding.text, remedy=finding.remedy)
    log.info("doctor", result=counted(findings), more="pulsar-sidecar doctor")


def _or_error(look: Callable[[], T]) -> OrError[T]:
    try:
        return look()
    except SidecarError as error:
        return error


def _failure(look: Callable[[], object]) -> SidecarError | None:
    answer = _or_error(look)
    return answer if isinstance(answer, SidecarError) else None


# --- the metadata store ----------------------------------------------------------------------------------------------


def _store(cluster: ClusterAccess) -> StoreFacts:
    store, root, url = cluster.store, cluster.settings.ledgers_root_path, cluster.settings.metadata_store_url
    credential, tls = store_credential_of(cluster.settings), store_tls_of(cluster.settings)

    def undeletable() -> Sequence[str]:
        return [path for path in (root, MANAGED_LEDGERS) if not may_delete_below(store, path, credential)]

    parsed = parse_metadata_store_url(url)
    return StoreFacts(
        hosts=f"zk:{parsed.hosts}",
        servers={address: _or_error(partial(zookeeper_server, address, tls)) for address in parsed.servers},
        missing=_or_error(partial(missing_nodes, store, root)),
        undeletable=_or_error(undeletable),
        ahead_seconds=_or_error(lambda: (cluster.clock.now_ms() - store.now_ms()) / 1000),
    )


def missing_nodes(store: MetadataStore, root: str) -> Sequence[str]:
    """Nodes of every Pulsar cluster that the store does not have.

    Either identity is enough: ``pulsar standalone`` has a layout, and clusters that were initialised have an id.
    """
    clusters, ledgers, *identity = store.read_many([_CLUSTERS, root, *identity_paths(root)])
    found = {_CLUSTERS: clusters, root: ledgers, instance_id_path(root): any(identity) or None}
    return [path for path, node in found.items() if node is None]


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
        registered=_or_error(lambda: [_broker(cluster, rest, broker) for broker in live_brokers(store)]),
        mismatch=_or_error(metadata.mismatch),
        own_topics=_or_error(lambda: _own_topics(cluster, BrokerTopicAdmin(rest))),
    )


def _connect(connections: BinaryConnections, address: BrokerAddress) -> None:
    connections.open(address).close()


def _broker(cluster: ClusterAccess, rest: AdminRest, broker: Broker) -> BrokerFacts:
    url = next(iter(rest.reachable(broker.web_service_urls)), None)
    if url is None:
        failure = TemporaryError("it has no address with the scheme of webServiceUrl; use the other scheme there")
        return BrokerFacts(broker.broker_id, failure, failure)
    answer = _or_error(lambda: rest.get_exactly_with_headers(url, VERSION_PATH))
    if isinstance(answer, SidecarError):
        return BrokerFacts(broker.broker_id, answer, answer)
    version, headers = answer
    ahead = _or_error(lambda: _ahead_seconds(headers.get("Date"), cluster.store.now_ms()))
    return BrokerFacts(
        broker.broker_id,
        version if isinstance(version, str) and version else None,
        _or_error(lambda: RuntimeConfiguration.of(rest, url).settings),
        None if isinstance(ahead, SidecarError) else ahead,
    )


def _ahead_seconds(date: str | None, now_ms: int) -> float | None:
    """How far a clock is ahead that wrote the date just now, in whole seconds."""
    try:
        return None if date is None else parsedate_to_datetime(date).timestamp() + 0.5 - now_ms / 1000
    except ValueError:
        return None


def _own_topics(cluster: ClusterAccess, admin: BrokerTopicAdmin) -> Sequence[str] | None:
    if not admin.partitions(topic_name(DeletionTopic.PENDING)):
        return None
    setup = TopicsSetup(admin, topic_name, TopicsSettings(), cluster.clock)
    try:
        setup.look_at_conditions()
    except NotFoundError:  # a sidecar is making them
        return None
    return setup.warnings


# --- bookies ---------------------------------------------------------------------------------------------------------


def _bookies(cluster: ClusterAccess) -> BookiesFacts:
    root = cluster.settings.ledgers_root_path

    def registered() -> Sequence[BookieFacts]:
        writable, read_only = cluster.store.children_many([available_bookies_path(root), read_only_bookies_path(root)])
        names = [(name, False) for name in writable or () if name != READ_ONLY_BOOKIES]
        names += [(name, True) for name in read_only or ()]
        return [BookieFacts(name, only, _failure(partial(_ask, cluster, name))) for name, only in names]

    return BookiesFacts(
        _or_error(registered),
        {url: _failure(partial(_ask_http, url)) for url in cluster.settings.bookie_http_urls},
    )


def _ask(cluster: ClusterAccess, bookie: str) -> None:
    # Whether it has this entry does not matter: it answers, and without asking who the sidecar is.
    cluster.bookies.read_many(BookieId(bookie), LedgerId(0), [EntryId(0)])


def _ask_http(url: str) -> None:
    with closing(BookieHttp([url], timeout_seconds=_READ_SECONDS)) as bookie:
        bookie.check()
