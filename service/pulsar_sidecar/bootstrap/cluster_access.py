"""Common access of all features to a cluster: the metadata store, brokers' admin services, bookies."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

import structlog

from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.bookkeeper.bucket_snapshots import BookieBucketEntries
from pulsar_sidecar.adapters.bookkeeper.stored_cursors import BookieLedgerLengths, BookieStoredCursors
from pulsar_sidecar.adapters.metadata_access import (
    SessionOptions,
    StoreCredential,
    StoreTls,
    WalkOptions,
    parse_credential,
)
from pulsar_sidecar.adapters.metadata_stores import ClusterWholeStore, latency_probe, open_store, open_whole_store
from pulsar_sidecar.adapters.pulsar_errors import translated
from pulsar_sidecar.adapters.pulsar_rest.ack_states import BrokerAckStates
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar_rest.delayed_topics import BrokerTopics
from pulsar_sidecar.adapters.pulsar_rest.live_owners import BrokerLiveOwners
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import BrokerTopicAdmin, endangered_source
from pulsar_sidecar.adapters.pulsar_wire.binary_connections import BinaryConnections, TopicOwners
from pulsar_sidecar.adapters.pulsar_wire.delayed_entries import BulkDelayedEntries
from pulsar_sidecar.bootstrap.bucket_deletions import BucketDeletions
from pulsar_sidecar.features.delayed_index.inspection.due_times import BucketDueTimes
from pulsar_sidecar.features.delayed_index.stored import StoredIndexes
from pulsar_sidecar.features.ledger_deletion.second_phase.limits import AdaptiveLimit
from pulsar_sidecar.features.ledger_deletion.steps import Steps
from pulsar_sidecar.features.ledger_deletion.workflow.serving import LedgerDeletion
from pulsar_sidecar.identity.credentials import ClientCertificate, ClientCredentials, TlsOptions, identity_of
from pulsar_sidecar.model.client_conf import ClientConf
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.settings.fields import Settings

_STARTING_SECONDS = 3.0
"""Delay of the probe, because the start of a sidecar, with its first requests to brokers, slows the store."""
_log = structlog.get_logger("pulsar-sidecar")


class _Closeable(Protocol):
    def close(self) -> object: ...


_Opened = TypeVar("_Opened", bound=_Closeable)


class ClusterAccess:
    """Adapters for the features, one of each kind, so that features share threads and connections.

    ``stack`` closes them, and everything that a feature opens by `closing` and `threads`.

    Attributes:
        steps: listener to each step of ledger deletion; None in production.
        bookies: connections to bookies, shared with writers of ledgers.
        buckets: entries of buckets' ledgers; their readers share its few threads.
        cursors: stored cursors.
        stored_indexes: stored parts of delayed indexes.
        lengths: lengths of topics' ledgers.
        owners: brokers that have topics loaded or own their bundles.
        topic_owners: brokers that serve topics by the binary protocol, over ``connections``.
        limit: limit of requests to the metadata store; None if switched off, or if nothing is deleted.
        deletion: deletion service, set once its feature is open, to which other features hand over ledgers.
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
        self.store = self.closing(open_store(settings.metadata_store_url, clock, session, limit=self.limit))
        self.bookies = BookieConnections(self.store, root)
        self.entries = self.closing(BookieEntries(self.bookies))
        self.buckets = self.closing(BookieBucketEntries(self.entries))
        self.cursors = BookieStoredCursors(self.store, self.entries, root)
        self.stored_indexes = StoredIndexes(self.store, self.buckets, self.cursors, root)
        self.due_times = BucketDueTimes(self.stored_indexes, self.buckets)
        self.lengths = BookieLedgerLengths(self.store, self.entries, root)
        self.rest = AdminRest([settings.web_service_url], self.credentials, self.tls, store=self.store)
        self.admin = BrokerTopicAdmin(self.rest)
        self.ack_states = BrokerAckStates(self.rest, self.store, clock, settings.jute_max_buffer_bytes)
        self.endangered_source = partial(endangered_source, self.rest, self.store)
        self.owners = self.closing(BrokerLiveOwners(self.rest, self.store))
        self.topics = self.closing(BrokerTopics(self.rest, self.store, clock))
        self.delayed_entries = BulkDelayedEntries(self.store, self.entries, self.rest, root, clock)
        connections = BinaryConnections(self.credentials, self.tls, clock)
        self.topic_owners = self.closing(TopicOwners(settings.broker_service_url, connections))

    def whole_store(self) -> ClusterWholeStore:
        """Return a reader, by walks, of all ledgers and of all nodes that may reference them."""
        settings = self.settings
        options = WalkOptions(
            store_credential_of(settings), settings.ledger_deletion_watch_nodes_per_second, store_tls_of(settings)
        )
        return open_whole_store(settings.metadata_store_url, self.clock, settings.ledgers_root_path, options)

    def bucket_deletions(self) -> BucketDeletions:
        """Return the deletion of buckets by the service of ledger deletion, which may open later."""
        root = self.settings.ledgers_root_path
        return BucketDeletions(lambda: self.deletion, self.store, root, self.steps or Steps())

    def closing(self, opened: _Opened) -> _Opened:
        """Register an adapter to close at the end, before those opened earlier, and return it."""
        close_at_the_end(self.stack, opened.close)
        return opened

    def threads(self, most: int, name: str) -> ThreadPoolExecutor:
        """Return at most ``most`` threads of this name, which finish their work at the end."""
        threads = ThreadPoolExecutor(most, name)
        close_at_the_end(self.stack, threads.shutdown)
        return threads

    def _adaptive_limit(self) -> AdaptiveLimit | None:
        settings = self.settings
        if not settings.topic_two_phase_deletion_enabled or settings.two_phase_deletion_latency_factor == 0:
            return None
        limit = AdaptiveLimit(self.clock, settings.two_phase_deletion_latency_factor)
        url, options = settings.metadata_store_url, store_session_of(settings)
        probe = self.closing(latency_probe(url, self.clock, options, limit, _STARTING_SECONDS))
        probe.start()
        return limit


def close_at_the_end(stack: ExitStack, close: Callable[[], object]) -> None:
    """Make ``stack`` call ``close``; a failure is only logged, so that the rest is closed too."""

    def closing() -> None:
        try:
            with translated(f"calling {close.__qualname__}"):
                close()
        except SidecarError as error:
            _log.warning("adapter failed to close cleanly", error=str(error))

    stack.callback(closing)


def broker_identity_of(settings: Settings) -> tuple[ClientCredentials, TlsOptions]:
    """Return the sidecar's credentials and TLS options for brokers; raise `InvalidInputError` if they are unusable."""
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


def store_credential_of(settings: Settings) -> StoreCredential | None:
    auth = settings.metadata_store_auth
    return parse_credential(None if auth is None else auth.get_secret_value())


def store_tls_of(settings: Settings) -> StoreTls | None:
    trusted = settings.metadata_store_tls_trust_certs_file_path
    if trusted is None:
        return None
    return StoreTls(
        trusted, settings.metadata_store_tls_certificate_file_path, settings.metadata_store_tls_key_file_path
    )


def store_session_of(settings: Settings) -> SessionOptions:
    """Return the sidecar's credential and TLS options for the metadata store."""
    return SessionOptions(credential=store_credential_of(settings), tls=store_tls_of(settings))
