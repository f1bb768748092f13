"""Records of the log: cancellations, and intents to publish a message again.

A cancellation has one key for each topic, position and subscription; every attempt to publish again has its own key and
token. The newest record of a key counts (compaction keeps it), and an empty record deletes the key.
"""

from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec

from pulsar_sidecar.features.delayed_messages.cancel.requests import Cancellation, by_subscription
from pulsar_sidecar.features.delayed_messages.results import CancellationStatus, Cause
from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.errors import InvalidInputError, UndecodableError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName, java_url_decode, java_url_encode, parse_topic_name

Message = tuple[TopicName, Position]
_T = TypeVar("_T")
_VERSION: Final = 1
_REMEMBERED: Final = 4096


@decodable
class _Record(msgspec.Struct, rename="camel", omit_defaults=True):
    """Value of a cancellation: the fields that its key lacks, in the order of `Cancellation`."""

    version: Literal[1]
    deliver_at: int
    requested_ms: int
    proof: CancellationStatus
    positions: tuple[Position, ...] = ()
    cause: Cause | None = None
    reason: str | None = None
    requested_by: str | None = None


@decodable
class _IntentRecord(msgspec.Struct, rename="camel", omit_defaults=True):
    """Value of an intent: the fields that its key lacks, in the order of `RescheduleIntent`."""

    version: Literal[1]
    deliver_at: int
    new_deliver_at: int | None
    requested_ms: int
    after: Position
    requested_by: str | None
    copy: str | None
    done: bool
    request_id: str | None = None


_ENCODE: Final = msgspec.json.Encoder().encode
_DECODER: Final = msgspec.json.Decoder(_Record)
_INTENT_DECODER: Final = msgspec.json.Decoder(_IntentRecord)


class RescheduleIntent(NamedTuple):
    """Intent to publish a message again and to cancel the original.

    Attributes:
        token: id of this attempt; its copy carries it in a property.
        deliver_at_ms: due time of the message.
        new_deliver_at_ms: due time of the copy, None for "now".
        after: position beyond which the copy is stored.
        copy: message id of the copy, once it is known to be stored.
        done: True if the original was cancelled as well.
        request_id: id of the call that requested it, for log lines.
    """

    topic: TopicName
    position: Position
    token: str
    deliver_at_ms: int
    new_deliver_at_ms: int | None
    requested_ms: int
    after: Position
    requested_by: str | None = None
    copy: str | None = None
    done: bool = False
    request_id: str | None = None

    @property
    def message(self) -> Message:
        return self.topic, self.position

    @property
    def key(self) -> str:
        return f"{key_of(self.topic, self.position, '')}|{self.token}"

    def encoded(self) -> tuple[str, bytes]:
        """Return the key and value of the record."""
        return self.key, msgspec.json.encode(_IntentRecord(_VERSION, *self[3:]))


# --- keys ----------------------------------------------------------------------------------------------------------


def key_of(topic: TopicName, position: Position, subscription: str) -> str:
    """Return a cancellation's key: ``<encoded topic>|<ledger>:<entry>|<encoded subscription>``."""
    before, after = _around(topic, subscription)
    return f"{before}{position}{after}"


@lru_cache(_REMEMBERED)
def _around(topic: TopicName, subscription: str) -> tuple[str, str]:
    return f"{java_url_encode(str(topic))}|", f"|{java_url_encode(subscription)}"


@lru_cache(_REMEMBERED)
def _topic(encoded: str) -> TopicName:
    return parse_topic_name(java_url_decode(encoded))


_subscription: Final = lru_cache(_REMEMBERED)(java_url_decode)


def parse_key(key: str) -> tuple[TopicName, Position, str]:
    """Parse a key of `key_of`.

    Raises:
        UndecodableError: the key is not a cancellation's.
    """
    try:
        topic, position, subscription = key.split("|")
        ledger_id, entry_id = map(int, position.split(":"))
        return _topic(topic), Position(LedgerId(ledger_id), EntryId(entry_id)), _subscription(subscription)
    except (ValueError, InvalidInputError) as error:
        raise UndecodableError("a key of the log cannot be read; another version wrote it") from error


def is_intent_key(key: str) -> bool:
    """Return True if the key is that of an intent to publish a message again."""
    return key.count("|") == 3


def parse_intent_key(key: str) -> tuple[Message, str]:
    """Return the message and token in an intent's key; raises as `parse_key` does."""
    of_message, _, token = key.rpartition("|")
    topic, position, _ = parse_key(of_message)
    return (topic, position), token


# --- values --------------------------------------------------------------------------------------------------------


def encode_all(cancellations: Iterable[Cancellation]) -> list[tuple[str, bytes]]:
    """Return the key and value of each cancellation."""
    records: list[tuple[str, bytes]] = []
    for (topic, subscription), ones in groupby(cancellations, by_subscription):
        before, after = _around(topic, subscription)
        records += [(f"{before}{one.position}{after}", _ENCODE(_Record(_VERSION, *one[3:]))) for one in ones]
    return records


def decode(key: str, value: bytes) -> Cancellation:
    """Decode a record of `encode_all`.

    Raises:
        UndecodableError: another version wrote the record, or it is damaged; it must be left alone.
    """
    topic, position, subscription = parse_key(key)
    found = _decoded(_DECODER, value)
    # Positional arguments are faster, and a start reads very many records.
    return Cancellation(topic, subscription, position, *msgspec.structs.astuple(found)[1:])


def decode_intent(key: str, value: bytes) -> RescheduleIntent:
    """Decode a record of `RescheduleIntent.encoded`; raises as `decode` does."""
    message, token = parse_intent_key(key)
    return RescheduleIntent(*message, token, *msgspec.structs.astuple(_decoded(_INTENT_DECODER, value))[1:])


def _decoded(decoder: msgspec.json.Decoder[_T], value: bytes) -> _T:
    try:
        return decoder.decode(value)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UndecodableError(f"a record of the log cannot be read: {error}") from error
