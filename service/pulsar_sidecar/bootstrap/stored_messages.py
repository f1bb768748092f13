"""The composition root of what reads stored messages: no broker is asked, and no service needs to run."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.bookkeeper.topic_entries import BookieTopicEntries
from pulsar_sidecar.adapters.metadata.addressing import parse_credential
from pulsar_sidecar.adapters.metadata.session import SessionOptions
from pulsar_sidecar.adapters.metadata.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.adapters.pulsar.wire.message_rows import BookieTopicMessages
from pulsar_sidecar.bootstrap.process import ended_in_order
from pulsar_sidecar.deduplication.verifying.requests import StoredMessagesRequest, VerifyRequest
from pulsar_sidecar.deduplication.verifying.verify import Progress, VerifiedTopic, verify_topic
from pulsar_sidecar.ledger_ownership.stored_topics import StoredTopics
from pulsar_sidecar.model.clocks import Clock, Pace, SystemClock
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import parse_topic_name

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Stored:
    store: MetadataStore
    topics: StoredTopics
    messages: BookieTopicMessages
    clock: Clock


def verify_stored(request: VerifyRequest, say: Say) -> tuple[VerifiedTopic, ...]:
    """Verify every partition of a topic, or the topic itself where it has none.

    Raises:
        NotFoundError: there is no such topic.
        TemporaryError: it could not be read.
    """
    topic = parse_topic_name(request.topic)
    with _opened(request.stored) as stored:
        progress = Progress(say, stored.clock)
        return tuple(verify_topic(place, stored.messages, progress) for place in stored.topics.places_of(topic))


@contextmanager
def _opened(request: StoredMessagesRequest) -> Iterator[_Stored]:
    if request.metadata_store_url is None:
        raise InvalidInputError(
            "name the metadata store: --metadata-store-url zk:HOST:PORT as in broker.conf, "
            "or PULSAR_SIDECAR_METADATA_STORE_URL"
        )
    clock = SystemClock()
    options = SessionOptions(credential=parse_credential(request.metadata_store_auth))
    with (
        ended_in_order(),
        ZooKeeperMetadataStore(request.metadata_store_url, clock, options) as store,
        closing(BookieEntries(BookieConnections(store, request.ledgers_root))) as entries,
    ):
        pace = Pace(clock, request.entries_per_second)
        topic_entries = BookieTopicEntries(store, entries, request.ledgers_root, pace)
        yield _Stored(store, StoredTopics(store), BookieTopicMessages(topic_entries), clock)
