"""The composition root of commands that read stored messages, without brokers or a running sidecar."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.bookkeeper.topic_entries import BookieTopicEntries
from pulsar_sidecar.adapters.metadata_stores import open_store
from pulsar_sidecar.adapters.pulsar_wire.message_rows import BookieTopicMessages
from pulsar_sidecar.bootstrap.process import ended_in_order
from pulsar_sidecar.bootstrap.store_access import command_session
from pulsar_sidecar.features.duplicates.requests import StoredMessagesRequest, VerifyRequest
from pulsar_sidecar.features.duplicates.verify import Progress, VerifiedTopic, verify_partitions
from pulsar_sidecar.model.clocks import Clock, Pace, SystemClock
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.metadata_stores import WHERE_TO_FIND_IT
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.model.progress import Report


def verify_stored(request: VerifyRequest, report: Report) -> tuple[VerifiedTopic, ...]:
    """Verify every partition of a topic, or the topic itself where it has none.

    Raises:
        NotFoundError: the topic does not exist, or was deleted meanwhile.
        TemporaryError: the topic could not be read.
    """
    topic = parse_topic_name(request.topic)
    clock = SystemClock()
    with opened_messages(request.stored, clock) as (store, messages):
        return verify_partitions(topic, store, messages, Progress(report, clock))


@contextmanager
def opened_messages(
    request: StoredMessagesRequest, clock: Clock
) -> Iterator[tuple[MetadataStore, BookieTopicMessages]]:
    """Yield the metadata store and the messages that bookies store; raise `InvalidInputError` if no store is named."""
    if request.metadata_store_url is None:
        raise InvalidInputError(
            "name the metadata store by --metadata-store-url zk:HOST:PORT or PULSAR_SIDECAR_METADATA_STORE_URL; "
            f"{WHERE_TO_FIND_IT}"
        )
    options = command_session(request.metadata_store_auth)
    with (
        ended_in_order(),
        open_store(request.metadata_store_url, clock, options) as store,
        closing(BookieEntries(BookieConnections(store, request.ledgers_root))) as entries,
    ):
        pace = Pace(clock, request.entries_per_second)
        yield store, BookieTopicMessages(BookieTopicEntries(store, entries, request.ledgers_root, pace))
