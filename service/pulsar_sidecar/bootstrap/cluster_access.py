"""What the process opens to a cluster for all rooms: the metadata store, brokers' admin services, bookies."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.metadata.probe import LatencyProbe
from pulsar_sidecar.adapters.metadata.url import parse_metadata_store_url
from pulsar_sidecar.adapters.metadata.zookeeper import open_metadata_store
from pulsar_sidecar.adapters.pulsar.rest.admin_rest import AdminRest
from pulsar_sidecar.bootstrap.closing import close_at_the_end
from pulsar_sidecar.bootstrap.settings_map import credentials_of, store_credential_of, tls_of
from pulsar_sidecar.ledger_deletion.second_phase.adaptive_limit import AdaptiveLimit
from pulsar_sidecar.ledger_deletion.steps import Steps
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.settings.fields import Settings

_STARTING_SECONDS = 3.0
"""A sidecar that starts, and asks brokers for the first time, makes the store slower than it is if it is let alone."""


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """What a room is opened with.

    Attributes:
        steps: told of each step of ledger deletion; None in production.
        stack: closes what a room opens for itself.
        limit: paces what goes to the metadata store; None when it is switched off.
    """

    settings: Settings
    environment: Mapping[str, str]
    steps: Steps | None
    clock: Clock
    stack: ExitStack
    cluster_name: str
    store: MetadataStore
    rest: AdminRest
    entries: BookieEntries
    limit: AdaptiveLimit | None


def open_cluster_access(
    settings: Settings,
    environment: Mapping[str, str],
    clock: Clock,
    stack: ExitStack,
    steps: Steps | None,
    cluster_name: str,
) -> ClusterAccess:
    """Open it; ``stack`` closes it."""
    limit = _adaptive_limit(settings, clock, stack)
    store = open_metadata_store(
        settings.metadata_store_url,
        clock,
        session_timeout_ms=settings.metadata_store_session_timeout_millis,
        credential=store_credential_of(settings),
        limit=limit,
    )
    close_at_the_end(stack, store)
    entries = BookieEntries(BookieConnections(store, settings.ledgers_root_path))
    close_at_the_end(stack, entries)
    return ClusterAccess(
        settings=settings,
        environment=environment,
        steps=steps,
        clock=clock,
        stack=stack,
        cluster_name=cluster_name,
        store=store,
        rest=AdminRest([settings.web_service_url], credentials_of(settings), tls_of(settings), store=store),
        entries=entries,
        limit=limit,
    )


def _adaptive_limit(settings: Settings, clock: Clock, stack: ExitStack) -> AdaptiveLimit | None:
    """The limit with the probe that it goes by; None when it is switched off, or nothing is deleted anyway."""
    if not settings.topic_two_phase_deletion_enabled or settings.two_phase_deletion_latency_factor == 0:
        return None
    limit = AdaptiveLimit(clock, settings.two_phase_deletion_latency_factor)
    servers = parse_metadata_store_url(settings.metadata_store_url).servers
    credential = store_credential_of(settings)
    probe = LatencyProbe(servers, credential, clock, limit, after_seconds=_STARTING_SECONDS)
    probe.start()
    close_at_the_end(stack, probe)
    return limit
