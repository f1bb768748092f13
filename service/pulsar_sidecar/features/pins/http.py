"""Routes of the pins of a ledger, a topic, a namespace or a bookie, which load no topic, and of the retention sweep.

Sizes are given twice: one copy, as brokers report it, and all copies on bookies.
"""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query
from pydantic import Field

from pulsar_sidecar.features.pins.bookies import BookiesReader
from pulsar_sidecar.features.pins.reading import PinsReader
from pulsar_sidecar.features.pins.results import (
    BookiePins,
    LedgerPins,
    NamespacePins,
    TopicPins,
    TrimmedTopic,
    UnloadedTopics,
)
from pulsar_sidecar.features.pins.sweep import RetentionSweep
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, BookieId, LedgerId
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.server.guard import Owners, guarded_router
from pulsar_sidecar.server.paths import (
    NAMESPACE_PATH,
    TOPIC_PATHS,
    V2_PATH,
    TenantName,
    V2Namespace,
    V2Topic,
    decode_segment,
)
from pulsar_sidecar.server.rights import Right, takes
from pulsar_sidecar.server.schemas import Parameters

_BASE = "/admin/v2/pins"
_LedgerId = Annotated[
    int, Path(alias="ledgerId", ge=0, le=MAX_LEDGER_ID, description="BookKeeper's ledger id.", examples=[4711])
]
_Bookie = Annotated[str, Path(description="The bookie's id, URL-encoded.", examples=["10.0.0.7:3181"])]


class NamespacePinsParameters(Parameters):
    """Page of topics, the largest first."""

    offset: int = Field(default=0, ge=0, le=10_000_000)
    """Number of topics to skip, largest first."""
    limit: int = Field(default=20, ge=1, le=100)
    """Maximum number of topics."""


class BookiePinsParameters(Parameters):
    """Page of owners, the largest first."""

    by_topic: bool = False
    """List topics instead of namespaces."""
    offset: int = Field(default=0, ge=0, le=10_000_000)
    """Number of owners to skip, largest first."""
    limit: int = Field(default=20, ge=1, le=1_000)
    """Maximum number of owners."""


def router(reader: PinsReader) -> APIRouter:
    routes = guarded_router("pins")
    for path, topic_of, version in TOPIC_PATHS:

        @routes.get(f"{_BASE}{path.removeprefix('/admin/v2').removeprefix('/admin')}", name=f"{version}topic_pins")
        @takes(Right.STATE)
        def topic_pins(topic: Annotated[TopicName, Depends(topic_of)]) -> Sequence[TopicPins]:
            """Return the cursors, policies and copies that keep a topic's bytes on bookies, with remedies.

            One response for each partition. 404: no such topic.
            """
            return reader.topic(topic)

    @routes.get(f"{_BASE}{NAMESPACE_PATH.removeprefix('/admin/v2')}")
    @takes(Right.POLICY)
    def namespace_pins(
        namespace: V2Namespace, parameters: Annotated[NamespacePinsParameters, Query()]
    ) -> NamespacePins:
        """Return the pins of the largest topics of a namespace."""
        return reader.namespace(namespace, parameters.offset, parameters.limit)

    @routes.get(f"{_BASE}/ledgers/{{ledgerId}}")
    @takes(Right.OWNED_STATE)
    def ledger_pins(ledger_id: _LedgerId, owners: Owners) -> LedgerPins:
        """Return the pins of one ledger, or the bookies that have not collected a deleted one.

        404: the ledger has no metadata, and no bookie holds an entry of it.
        """
        owners.require(lambda: reader.tenants_of([LedgerId(ledger_id)]))
        return reader.ledger(LedgerId(ledger_id))

    return routes


def bookies_router(reader: BookiesReader) -> APIRouter:
    routes = guarded_router("pins")

    @routes.get(f"{_BASE}/bookies")
    @takes(Right.CLUSTER_STATE)
    def bookies_pins() -> list[BookiePins]:
        """List the bookies, including those that are down, with their ledgers' bytes and the bytes not collected.

        The sidecar reads all ledgers at most once a minute, and spends at most a tenth of the time on it. 503: the
        reading takes longer; it continues, and a later request gets its result.
        """
        return reader.bookies()

    @routes.get(f"{_BASE}/bookies/{{bookie}}")
    @takes(Right.CLUSTER_STATE)
    def bookie_pins(bookie: _Bookie, parameters: Annotated[BookiePinsParameters, Query()]) -> BookiePins:
        """Return one bookie, with the namespaces or topics that use most of it.

        404: no such bookie.
        """
        wanted = BookieId(decode_segment(bookie))
        by_topic, offset, limit = parameters.by_topic, parameters.offset, parameters.limit
        return reader.bookie(wanted, by_topic=by_topic, offset=offset, limit=limit)

    return routes


class PastRetentionParameters(Parameters):
    """Page of topics, by name."""

    after: str | None = Field(default=None, max_length=8192)
    """Last topic of the previous page."""
    limit: int = Field(default=500, ge=1, le=1_000)
    """Maximum number of topics to examine."""


class TrimParameters(Parameters):
    """Limit of a trim."""

    max_load_percent: float = Field(default=70, gt=0, le=100)
    """The sidecar loads no topic while the use of a broker's CPU, direct memory or bandwidth exceeds this."""


_Page = Annotated[PastRetentionParameters, Query()]


def sweep_router(sweep: RetentionSweep) -> APIRouter:
    routes = guarded_router("retention")

    def found(scope: TopicName | str | None, page: PastRetentionParameters) -> UnloadedTopics:
        return sweep.find(scope, page.after, page.limit)

    @routes.get("/admin/v2/pastRetention")
    @takes(Right.CLUSTER_STATE)
    def past_retention(page: _Page) -> UnloadedTopics:
        """Find topics that no broker has loaded, with untrimmed ledgers past retention. Loads no topic."""
        return found(None, page)

    @routes.get("/admin/v2/tenants/{tenant}/pastRetention")
    @takes(Right.POLICY)
    def past_retention_of_tenant(tenant: TenantName, page: _Page) -> UnloadedTopics:
        """Find a tenant's unloaded topics with ledgers past retention."""
        return found(tenant, page)

    @routes.get(f"{NAMESPACE_PATH}/pastRetention")
    @takes(Right.POLICY)
    def past_retention_of_namespace(namespace: V2Namespace, page: _Page) -> UnloadedTopics:
        """Find a namespace's unloaded topics with ledgers past retention."""
        return found(namespace, page)

    @routes.get(f"{V2_PATH}/pastRetention")
    @takes(Right.STATE)
    def past_retention_of_topic(topic: V2Topic, page: _Page) -> UnloadedTopics:
        """Find the ledgers past retention of a topic, or of its partitions, if no broker has loaded it."""
        return found(topic, page)

    @routes.post(f"{V2_PATH}/pastRetention")
    @takes(Right.CHANGE)
    def trim_past_retention(topic: V2Topic, parameters: Annotated[TrimParameters, Query()]) -> TrimmedTopic:
        """Load a topic past its retention, have its broker trim it, and unload it again; one topic at a time.

        ``state`` has the end, or the reason why the topic was not loaded. A repeated call does nothing twice. 503:
        another call is running.
        """
        return sweep.trim(topic, parameters.max_load_percent)

    return routes
