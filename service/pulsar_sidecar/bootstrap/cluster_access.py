"""What the process opens to a cluster for all rooms: the metadata store, brokers' admin services, bookies."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Protocol, TypeVar

import structlog

from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.bookkeeper.bucket_snapshots import BookieBucketEntries
from pulsar_sidecar.adapters.bookkeeper.stored_cursors import BookieLedgerLengths, BookieStoredCursors
from pulsar_sidecar.adapters.metadata.addressing import (
    ZooKeeperCredential,
    ZooKeeperTls,
    parse_credential,
    parse_metadata_store_url,
)
from pulsar_sidecar.adapters.metadata.node_walk import WalkOptions
from pulsar_sidecar.adapters.metadata.probe import LatencyProbe
from pulsar_sidecar.adapters.metadata.session import SessionOptions
from pulsar_sidecar.adapters.metadata.whole_store import ZooKeeperWholeStore
from pulsar_sidecar.adapters.metadata.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.adapters.pulsar.errors import translated
from pulsar_sidecar.adapters.pulsar.rest.ack_states import BrokerAckStates
from pulsar_sidecar.adapters.pulsar.rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar.rest.delayed_topics import BrokerTopics
from pulsar_sidecar.adapters.pulsar.rest.live_owners import BrokerLiveOwners
from pulsar_sidecar.adapters.pulsar.rest.topic_admin import BrokerShadows, BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar.wire.binary_connections import BinaryConnections, TopicOwners
from pulsar_sidecar.adapters.pulsar.wire.delayed_entries import BulkDelayedEntries
from pulsar_sidecar.delayed_delivery.index.stored import StoredIndexes
from pulsar_sidecar.identity.credentials import ClientCertificate, ClientCredentials, TlsOptions, identity_of
from pulsar_sidecar.ledger_deletion.second_phase.limits import AdaptiveLimit
from pulsar_sidecar.ledger_deletion.steps import Steps
from pulsar_sidecar.ledger_deletion.workflow.serving import LedgerDeletion
from pulsar_sidecar.model.client_conf import ClientConf
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.settings.fields import Settings

_STARTING_SECONDS = 3.0
"""A sidecar that starts, and asks brokers for the first time, makes the store slower than it is if it is let alone."""
_log = structlog.get_logger("pulsar-sidecar")


class _Closeable(Protocol):
    def close(self) -> object: ...


_Opened = TypeVar("_Opened", bound=_Closeable)


class ClusterAccess:
    """What a room is opened with: one adapter of each kind for all rooms, so that they share threads and connections.

    ``stack`` closes them, and what a room opens for itself with `closing` and `threads`.

    Attributes:
        steps: notified of each step of ledger deletion; None in production.
        bookies: entries' connections, which writers of ledgers use as well.
        buckets: entries of buckets' ledgers; what reads them shares its few threads.
        cursors: as they are stored.
        stored_indexes: what is stored of delayed indexes.
        lengths: of topics' ledgers.
        owners: which brokers have topics loaded, or own their bundles.
        topic_owners: which brokers serve topics by the binary protocol, over ``connections``.
        limit: paces what goes to the metadata store; None when it is switched off, or nothing is deleted anyway.
        deletion: the deletion service, once its room is open: other rooms hand it ledgers.
    """

    deletion: LedgerDeletion

    def __init__(
        self,
        settings: Settings,
        environment: Mapping[str, str],
        clock: Clock,
        stack: ExitStack,
        steps: Steps | None,
        cluster_name: str,
    ) -> None:
        self.settings, self.environment, self.clock, self.stack = settings, environment, clock, stack
        self.steps, self.cluster_name = steps, cluster_name
        self.credentials, self.tls = broker_identity_of(settings)
        self.limit = self._adaptive_limit()
        session = replace(store_session_of(settings), timeout_ms=settings.metadata_store_session_timeout_millis)
        root = settings.ledgers_root_path
        self.store = self.closing(ZooKeeperMetadataStore(settings.metadata_store_url, clock, session, limit=self.limit))
        self.bookies = BookieConnections(self.store, root)
        self.entries = self.closing(BookieEntries(self.bookies))
        self.buckets = self.closing(BookieBucketEntries(self.entries))
        self.cursors = BookieStoredCursors(self.store, self.entries, root)
        self.stored_indexes = StoredIndexes(self.store, self.buckets, self.cursors, root)
        self.lengths = BookieLedgerLengths(self.store, self.entries, root)
        self.rest = AdminRest([settings.web_service_url], self.credentials, self.tls, store=self.store)
        self.admin = BrokerTopicAdmin(self.rest)
        self.ack_states = BrokerAckStates(self.rest, self.store, clock, settings.jute_max_buffer_bytes)
        self.shadows = BrokerShadows(self.rest, self.store)
        self.owners = self.closing(BrokerLiveOwners(self.rest, self.store))
        self.topics = self.closing(BrokerTopics(self.rest, self.store, clock))
        self.delayed_entries = BulkDelayedEntries(self.store, self.entries, self.rest, root, clock)
        connections = BinaryConnections(self.credentials, self.tls, clock)
        self.topic_owners = self.closing(TopicOwners(settings.broker_service_url, connections))

    def whole_store(self) -> ZooKeeperWholeStore:
        """All ledgers, and all nodes that may reference them, by walking."""
        settings = self.settings
        options = WalkOptions(
            store_credential_of(settings), settings.ledger_deletion_watch_nodes_per_second, store_tls_of(settings)
        )
        return ZooKeeperWholeStore(settings.metadata_store_url, self.clock, settings.ledgers_root_path, options)

    def closing(self, opened: _Opened) -> _Opened:
        """The same, which is closed at the end, before what was opened earlier."""
        close_at_the_end(self.stack, opened.close)
        return opened

    def threads(self, most: int, name: str) -> ThreadPoolExecutor:
        """At most so many threads of this name; their work is finished at the end."""
        threads = ThreadPoolExecutor(most, name)
        close_at_the_end(self.stack, threads.shutdown)
        return threads

    def _adaptive_limit(self) -> AdaptiveLimit | None:
        settings = self.settings
        if not settings.topic_two_phase_deletion_enabled or settings.two_phase_deletion_latency_factor == 0:
            return None
        limit = AdaptiveLimit(self.clock, settings.two_phase_deletion_latency_factor)
        servers = parse_metadata_store_url(settings.metadata_store_url).servers
        credential = store_credential_of(settings)
        tls = store_tls_of(settings)
        probe = LatencyProbe(servers, credential, self.clock, limit, tls=tls, after_seconds=_STARTING_SECONDS)
        self.closing(probe)
        probe.start()
        return limit


def close_at_the_end(stack: ExitStack, close: Callable[[], object]) -> None:
    """Let ``stack`` call it; a failure of that is a warning, so that the rest is closed too."""

    def closing() -> None:
        try:
            with translated(f"calling {close.__qualname__}"):
                close()
        except SidecarError as error:
            _log.warning("an adapter did not close in order", error=str(error))

    stack.callback(closing)


def broker_identity_of(settings: Settings) -> tuple[ClientCredentials, TlsOptions]:
    """Who the sidecar is to brokers, and how it connects to them; `InvalidInputError` if that cannot be."""
    params = settings.auth_params.get_secret_value() if settings.auth_params else None
    file, key_file = settings.tls_certificate_file_path, settings.tls_key_file_path
    certificate = ClientCertificate(file, key_file) if file and key_file else None
    conf = ClientConf(
        settings.auth_plugin,
        params,
        settings.tls_trust_certs_file_path,
        settings.tls_allow_insecure_connection,
        settings.tls_enable_hostname_verification,
    )
    return identity_of(conf, certificate)


def store_credential_of(settings: Settings) -> ZooKeeperCredential | None:
    auth = settings.metadata_store_auth
    return parse_credential(None if auth is None else auth.get_secret_value())


def store_tls_of(settings: Settings) -> ZooKeeperTls | None:
    trusted = settings.metadata_store_tls_trust_certs_file_path
    if trusted is None:
        return None
    return ZooKeeperTls(
        trusted, settings.metadata_store_tls_certificate_file_path, settings.metadata_store_tls_key_file_path
    )


def store_session_of(settings: Settings) -> SessionOptions:
    """Who the sidecar is to the metadata store, and how it connects."""
    return SessionOptions(credential=store_credential_of(settings), tls=store_tls_of(settings))
