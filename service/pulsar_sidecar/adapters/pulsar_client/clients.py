"""The Pulsar client: opening it with the sidecar's identity, and reading with it.

Invariant: one client per process; its opener closes it before the interpreter ends, because the C++ client's threads
deliver receipts to Python. Their log lines take another path (`client_log`).

Reading a topic from a time on: to seek, a broker closes the reader's consumer, and the client reopens it in the
background. A request in between finds no consumer at the broker (seen on 3.3.6: ``BrokerMetadataError: Consumer not
found``), which proves nothing about the topic; and twice, on 4.0.8 and a busy machine, a reading missed an existing
message. So a reader that does not seek to a time first finds the newest message, and a caller that must not miss
anything does not seek.
Invariants: a reading that ends has passed the newest message, or that message is older than the requested time; a
reading that cannot get there fails; a topic counts as empty when two readers of different kinds find nothing.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Final

import _pulsar
import pulsar

from pulsar_sidecar.adapters.pulsar_client.client_log import client_log
from pulsar_sidecar.adapters.pulsar_credentials import check_tls_files, client_authentication
from pulsar_sidecar.adapters.pulsar_errors import close_quietly, translated
from pulsar_sidecar.features.ledger_deletion.ports import Delivery
from pulsar_sidecar.identity.credentials import ClientCredentials, TlsOptions
from pulsar_sidecar.model.errors import InvalidInputError, PermanentError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position

SHARED = pulsar.ConsumerType.Shared
"""Type of a consumer that shares its subscription, for callers that get a client."""

SEQUENCE_ID: Final = "PULSAR_SIDECAR_SEQUENCE_ID"
"""Property for an explicit sequence id where brokers do not deduplicate."""
_PAUSE_SECONDS: Final = 0.05
_TRIES: Final = 100
_LOOKS: Final = 5
_READ_TIMEOUT_MS: Final = 30_000
_CONNECTION_TIMEOUT_MS: Final = 10_000
_OPERATION_TIMEOUT_SECONDS: Final = 15
"""Also the longest delay of a `publish` by a partition without a broker."""
_BEFORE_ALL: Final = Position(LedgerId(-1), EntryId(-1))


def open_client(
    broker_service_url: str, credentials: ClientCredentials | None = None, tls: TlsOptions | None = None
) -> pulsar.Client:
    """Return a client for ``pulsar://host:port[,host:port]`` or ``pulsar+ssl://...``; it connects on first use.

    The C++ client's lines of WARNING and above go to the logger ``pulsar_sidecar.adapters.pulsar_client``, without
    repetitions.

    Raises:
        InvalidInputError: the URL is not of the binary protocol, or a certificate's file cannot be used.
    """
    known = credentials or ClientCredentials()
    options = tls or TlsOptions()
    check_tls_files(known, options)  # the client would retry forever with a bad file
    trusted = options.trust_certs_file
    shown = known.shown_certificate(options)
    try:
        return pulsar.Client(
            broker_service_url,
            client_authentication(known),
            operation_timeout_seconds=_OPERATION_TIMEOUT_SECONDS,
            connection_timeout_ms=_CONNECTION_TIMEOUT_MS,
            stats_interval_in_seconds=0,
            tls_trust_certs_file_path=None if trusted is None else str(trusted),
            tls_allow_insecure_connection=options.allow_insecure_connection,
            tls_validate_hostname=options.hostname_verification,
            tls_certificate_file_path=None if shown is None else str(shown.file),
            tls_private_key_file_path=None if shown is None else str(shown.key_file),
            logger=client_log().client_logger(),
        )
    except ValueError as error:
        raise InvalidInputError("the broker service URL cannot be used; write pulsar://host:port") from error


@contextmanager
def opened_client(
    broker_service_url: str, credentials: ClientCredentials | None = None, tls: TlsOptions | None = None
) -> Iterator[pulsar.Client]:
    """Open a client as `open_client` does, and close it at the end.

    A failure to close is only logged: the client raises when an abandoned producer is closing already, and by then the
    work is done.
    """
    client = open_client(broker_service_url, credentials, tls)
    try:
        yield client
    finally:
        close_quietly(client, "closing the Pulsar client")


def partitions_of(client: pulsar.Client, topic: str) -> Sequence[str]:
    """Return the partitions' URIs, or the topic itself when it has none."""
    with translated(f"looking up the partitions of {topic}"):
        return client.get_topic_partitions(topic)


# --- reading -------------------------------------------------------------------------------------------------------


def delivery_of(message: pulsar.Message) -> Delivery:
    """Return the message as the workflow sees it; its handle is the client's own message id."""
    # Bypasses the client's wrapper, which adds a call to each of these.
    raw = message._message
    message_id = raw.message_id()
    properties = raw.properties()
    properties.pop(SEQUENCE_ID, None)
    return Delivery(
        handle=message_id,
        payload=raw.data(),
        key=raw.partition_key() or raw.ordering_key() or None,
        properties=properties,
        message_id=java_message_id(message_id),
        topic=raw.topic_name(),
        publish_time_ms=raw.publish_timestamp(),
        redelivery_count=max(0, raw.redelivery_count()),
        event_time_ms=raw.event_timestamp() or None,
    )


def java_message_id(message_id: _pulsar.MessageId) -> str:
    """Return ``ledgerId:entryId:partitionIndex[:batchIndex]`` (``MessageIdImpl``, ``BatchMessageIdImpl``)."""
    text = f"{message_id.ledger_id()}:{message_id.entry_id()}:{message_id.partition()}"
    batch_index = message_id.batch_index()
    return f"{text}:{batch_index}" if batch_index >= 0 else text


def handle_of(delivery: Delivery) -> _pulsar.MessageId:
    """Return the client's message id from `delivery_of`; raise `PermanentError` for a delivery made elsewhere."""
    if not isinstance(delivery.handle, _pulsar.MessageId):
        raise PermanentError(f"{delivery.message_id} was not received here, so it cannot be acknowledged here")
    return delivery.handle


def position_of(message_id: _pulsar.MessageId) -> Position:
    return Position(LedgerId(message_id.ledger_id()), EntryId(message_id.entry_id()))


def messages_since(
    client: pulsar.Client, topic: str, since_ms: int, *, seeking: bool = False
) -> Iterator[pulsar.Message]:
    """Yield the messages published at ``since_ms`` or later, oldest first, up to the one that was newest at the start.

    ``since_ms`` is by the producers' clocks. With ``seeking`` the reading begins near that time, not at the topic's
    beginning, and may miss existing messages. Raises a PulsarException when the topic could not be read to its end.
    """
    newest = newest_message(client, topic)
    if newest is None:
        return
    end, is_recent = position_of(newest.message_id()), newest.publish_timestamp() >= since_ms
    with closing(client.create_reader(topic, pulsar.MessageId.earliest)) as reader:
        if seeking and since_ms > 0:
            reader.seek(since_ms)
        reached = _BEFORE_ALL
        while has_more(reader) or (is_recent and reached < end):
            message = reader.read_next(_READ_TIMEOUT_MS)
            reached = position_of(message.message_id())
            if reached > end:
                return
            if message.publish_timestamp() >= since_ms:
                yield message


def newest_message(client: pulsar.Client, topic: str) -> pulsar.Message | None:
    """Return the last message of a topic, None when it has none; a PulsarException for inconsistent responses."""
    for _ in range(_LOOKS):
        with closing(client.create_reader(topic, pulsar.MessageId.latest, start_message_id_inclusive=True)) as reader:
            if has_more(reader):
                return reader.read_next(_READ_TIMEOUT_MS)
        with closing(client.create_reader(topic, pulsar.MessageId.earliest)) as reader:
            if not has_more(reader):
                return None
    raise pulsar.exceptions.Timeout


def has_more(reader: pulsar.Reader) -> bool:
    """Return True if there is a message to read; retry while the reader may still be seeking."""
    for _ in range(_TRIES):
        try:
            return reader.has_message_available()
        except pulsar.exceptions.BrokerMetadataError:
            time.sleep(_PAUSE_SECONDS)
    return reader.has_message_available()
