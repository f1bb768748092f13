"""Reading a topic from a time on, to its end as it was when the reading began.

To seek, a broker closes the reader's consumer, and the client opens it again behind the caller's back. What is asked in
between finds no consumer at the broker (seen on 3.3.6: ``BrokerMetadataError: Consumer not found``), which says nothing
about the topic; and twice, on 4.0.8 and a busy machine, what was read lacked a message that was there. So the newest
message is looked up first, by a reader that does not seek to a time, and whoever must not miss anything does not seek.
Invariants: a reading that ends has passed the newest message, or that message is older than what was asked for; a
reading that cannot get there fails; a topic is called empty when two readers of different kinds find nothing.
"""

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import pulsar

from pulsar_sidecar.adapters.pulsar.client.deliveries import position_of
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position

_PAUSE_SECONDS: Final = 0.05
_TRIES: Final = 100
_LOOKS: Final = 5
_READ_TIMEOUT_MS: Final = 30_000
_BEFORE_ALL: Final = Position(LedgerId(-1), EntryId(-1))


def messages_since(
    client: pulsar.Client, topic: str, since_ms: int, *, seeking: bool = False
) -> Iterator[pulsar.Message]:
    """The messages published at ``since_ms`` or later, oldest first; what is published meanwhile is not waited for.

    Args:
        client: the reader's client.
        topic: one topic or partition.
        since_ms: by the clocks of those who published.
        seeking: begin near that time, not at the topic's beginning: what is found is there, and so may be what is not.

    Raises:
        pulsar.PulsarException: the topic could not be read to its end.
    """
    newest = newest_message(client, topic)
    if newest is None:
        return
    end, must_reach = position_of(newest.message_id()), newest.publish_timestamp() >= since_ms
    with closing(_reader(client, topic, since_ms if seeking else 0)) as reader:
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
        pulsar.PulsarException: the topic's broker could not be reached, or contradicts itself.
    """
    for _ in range(_LOOKS):
        with closing(client.create_reader(topic, pulsar.MessageId.latest, start_message_id_inclusive=True)) as reader:
            if has_more(reader):
                return reader.read_next(_READ_TIMEOUT_MS)
        with closing(client.create_reader(topic, pulsar.MessageId.earliest)) as reader:
            if not has_more(reader):
                return None
    raise pulsar.exceptions.Timeout


def has_more(reader: pulsar.Reader) -> bool:
    """Whether there is a message to read, asked again while the reader may be on its way back from seeking."""
    for _ in range(_TRIES):
        try:
            return reader.has_message_available()
        except pulsar.exceptions.BrokerMetadataError:
            time.sleep(_PAUSE_SECONDS)
    return reader.has_message_available()


def _reader(client: pulsar.Client, topic: str, since_ms: int) -> pulsar.Reader:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    if since_ms > 0:
        try:
            reader.seek(since_ms)
        except pulsar.PulsarException:
            reader.close()
            raise
    return reader
