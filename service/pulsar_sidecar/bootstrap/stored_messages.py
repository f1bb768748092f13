"""The composition root of what reads stored messages: no broker is asked, and no service needs to run."""

import re
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Final

from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.bookkeeper.topic_entries import BookieTopicEntries
from pulsar_sidecar.adapters.metadata.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.adapters.parquet.output import parquet_output
from pulsar_sidecar.adapters.pulsar.wire.message_rows import BookieTopicMessages
from pulsar_sidecar.bootstrap.process import ended_in_order, tool_version
from pulsar_sidecar.bootstrap.store_access import command_session
from pulsar_sidecar.deduplication.verifying.extract import extract
from pulsar_sidecar.deduplication.verifying.manifests import ExtractManifest
from pulsar_sidecar.deduplication.verifying.requests import ExtractRequest, StoredMessagesRequest, VerifyRequest
from pulsar_sidecar.deduplication.verifying.verify import Progress, VerifiedTopic, verify_partitions
from pulsar_sidecar.ledger_ownership.paths import instance_id_of, instance_id_path
from pulsar_sidecar.ledger_ownership.stored_topics import StoredTopics
from pulsar_sidecar.model.clocks import Clock, Pace, SystemClock
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.model.progress import Report

_TOPIC_SLASHES: Final = 2
_NAME: Final = re.compile(r"[-=:.\w]*[-=:\w][-=:.\w]*", re.ASCII)


def verify_stored(request: VerifyRequest, report: Report) -> tuple[VerifiedTopic, ...]:
    """Verify every partition of a topic, or the topic itself where it has none.

    Raises:
        NotFoundError: there is no such topic, or it was deleted meanwhile.
        TemporaryError: it could not be read.
    """
    topic = parse_topic_name(request.topic)
    clock = SystemClock()
    with _opened(request.stored, clock) as (store, messages):
        return verify_partitions(topic, store, messages, Progress(report, clock))


def make_extract(request: ExtractRequest, report: Report) -> ExtractManifest:
    """Make an extract of a tenant, a namespace or a topic.

    Raises:
        NotFoundError: there is no such thing.
        TemporaryError: it could not be read or written; nothing is left behind.
    """
    clock = SystemClock()
    with _opened(request.stored, clock) as (store, messages):
        root = request.stored.ledgers_root
        url = request.stored.metadata_store_url or ""
        instance_id = instance_id_of(store.read(instance_id_path(root)), root)
        return extract(
            _places_of(request.scope, StoredTopics(store)),
            messages,
            partial(parquet_output, request.output),
            Progress(report, clock),
            clock,
            scope=request.scope,
            source=url,
            instance_id=instance_id,
            tool_version=tool_version(),
        )


def _places_of(scope: str, topics: StoredTopics) -> Iterable[TopicName]:
    """Partitions, and topics without."""
    if "://" in scope or scope.count("/") >= _TOPIC_SLASHES:
        return topics.places_of(parse_topic_name(scope))
    if not all(_NAME.fullmatch(part) for part in scope.split("/")):
        raise InvalidInputError(f"{scope!r:.200} is neither a tenant nor a namespace nor a topic")
    return topics.places_below(scope)


@contextmanager
def _opened(request: StoredMessagesRequest, clock: Clock) -> Iterator[tuple[MetadataStore, BookieTopicMessages]]:
    if request.metadata_store_url is None:
        raise InvalidInputError(
            "name the metadata store: --metadata-store-url zk:HOST:PORT as in broker.conf, "
            "or PULSAR_SIDECAR_METADATA_STORE_URL"
        )
    options = command_session(request.metadata_store_auth)
    with (
        ended_in_order(),
        ZooKeeperMetadataStore(request.metadata_store_url, clock, options) as store,
        closing(BookieEntries(BookieConnections(store, request.ledgers_root))) as entries,
    ):
        pace = Pace(clock, request.entries_per_second)
        yield store, BookieTopicMessages(BookieTopicEntries(store, entries, request.ledgers_root, pace))
