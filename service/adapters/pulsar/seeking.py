"""Reading a topic from a time on, to its end as it was when the reading began.

To seek, a broker closes the reader's consumer, and the client opens it again behind the caller's back. What is asked in
between finds no consumer at the broker (seen on 3.3.6: ``BrokerMetadataError: Consumer not found``), which says nothing
about the topic; and once, on 4.0.8, a reader that had just sought saw no message where there was one. So the newest
message is looked up first, by a reader that does not seek to a time. Invariant: a reading that ends has passed that
message, or that message is older than what was asked for; a reading that cannot get there fails.
"""

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import pulsar

from service.adapters.pulsar.deliveries import position_of
from service.model.ids import EntryId, LedgerId
from service.model.positions import Position

_PAUSE_SECONDS: Final = 0.05
_TRIES: Final = 100
_READ_TIMEOUT_MS: Final = 30_000
_BEFORE_ALL: Final = Position(LedgerId(-1), EntryId(-1))


def messages_since(client: pulsar.Client, topic: str, since_ms: int) -> Iterator[pulsar.Message]:
    """The messages published at ``since_ms`` or later, oldest first; what is published meanwhile is not waited for.

    Raises:
        pulsar.PulsarException: the topic could not be read to its end.
    """
    newest = newest_message(client, topic)
    if newest is None:
        return
    end, must_reach = position_of(newest.message_id()), newest.publish_timestamp() >= since_ms
    with closing(_reader_since(client, topic, since_ms)) as reader:
        reached = _BEFORE_ALL
        while has_more(reader) or (must_reach and reached < end):
            message = reader.read_next(_READ_TIMEOUT_MS)
            reached = position_of(message.message_id())
            if reached > end:
                return
            if message.publish_timestamp() >= since_ms:
                yield message


def newest_message(client: pulsar.Client, topic: str) -> pulsar.Message | None:
    """The last message of a topic, None when it has none (any more).

    Raises:
        pulsar.PulsarException: the topic's broker could not be reached.
    """
    with closing(client.create_reader(topic, pulsar.MessageId.latest, start_message_id_inclusive=True)) as reader:
        return reader.read_next(_READ_TIMEOUT_MS) if has_more(reader) else None


def has_more(reader: pulsar.Reader) -> bool:
    """Whether there is a message to read, asked again while the reader may be on its way back from seeking."""
    never = threading.Event()
    for _ in range(_TRIES):
        try:
            return reader.has_message_available()
        except pulsar.exceptions.BrokerMetadataError:
            never.wait(_PAUSE_SECONDS)
    return reader.has_message_available()


def _reader_since(client: pulsar.Client, topic: str, since_ms: int) -> pulsar.Reader:
    """A reader of what was published at ``since_ms`` or later, and perhaps of some of what came before."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    if since_ms > 0:
        try:
            reader.seek(since_ms)
        except pulsar.PulsarException:
            reader.close()
            raise
    return reader
