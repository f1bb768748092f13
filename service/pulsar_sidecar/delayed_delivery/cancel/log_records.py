"""The log's records: cancellations, and messages to publish again.

A cancellation has one key for each topic, position and subscription; every attempt to publish again has a key and a
token of its own. The newest record of a key counts (compaction keeps it), and an empty one forgets the key.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec

from pulsar_sidecar.delayed_delivery.cancel.requests import Cancellation, CancellationStatus, Cause
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
    """A cancellation's value: the part that its key does not have, in `Cancellation`'s order."""

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
    """An intent's value: the part that its key does not have, in `RescheduleIntent`'s order."""

    version: Literal[1]
    deliver_at: int
    new_deliver_at: int | None
    requested_ms: int
    after: Position
    requested_by: str | None
    copy: str | None
    done: bool
    request_id: str | None = None


_DECODER: Final = msgspec.json.Decoder(_Record)
_INTENT_DECODER: Final = msgspec.json.Decoder(_IntentRecord)


class RescheduleIntent(NamedTuple):
    """A message that is to be published again, and cancelled.

    Attributes:
        token: names this attempt; its copy carries it in a property.
        deliver_at_ms: the message's due time.
        new_deliver_at_ms: the copy's, None for "now".
        after: the copy is stored beyond this position.
        copy: the copy's message id, once it is known to be stored.
        done: whether the old message was cancelled as well.
        request_id: of the call that asked for it, for log lines.
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
        """Key and value."""
        return self.key, msgspec.json.encode(_IntentRecord(_VERSION, *self[3:]))


# --- keys ----------------------------------------------------------------------------------------------------------


def key_of(topic: TopicName, position: Position, subscription: str) -> str:
    """A cancellation's key: ``<encoded topic>|<ledger>:<entry>|<encoded subscription>``."""
    before, after = _around(topic, subscription)
    return f"{before}{position.ledger_id}:{position.entry_id}{after}"


@lru_cache(_REMEMBERED)
def _around(topic: TopicName, subscription: str) -> tuple[str, str]:
    return f"{java_url_encode(str(topic))}|", f"|{java_url_encode(subscription)}"


@lru_cache(_REMEMBERED)
def _topic(encoded: str) -> TopicName:
    return parse_topic_name(java_url_decode(encoded))


_subscription: Final = lru_cache(_REMEMBERED)(java_url_decode)


def parse_key(key: str) -> tuple[TopicName, Position, str]:
    """The reverse of `key_of`.

    Raises:
        UndecodableError: it is none of ours.
    """
    try:
        topic, position, subscription = key.split("|")
        ledger_id, entry_id = map(int, position.split(":"))
        return _topic(topic), Position(LedgerId(ledger_id), EntryId(entry_id)), _subscription(subscription)
    except (ValueError, InvalidInputError) as error:
        raise UndecodableError("a key of the log cannot be read; another version wrote it") from error


def is_intent_key(key: str) -> bool:
    """Whether a record of the log is about publishing a message again."""
    return key.count("|") == 3


def parse_intent_key(key: str) -> tuple[Message, str]:
    """The message and the token; raises as `parse_key` does."""
    of_message, _, token = key.rpartition("|")
    topic, position, _ = parse_key(of_message)
    return (topic, position), token


# --- values --------------------------------------------------------------------------------------------------------


def encode_all(cancellations: Iterable[Cancellation]) -> list[tuple[str, bytes]]:
    """Key and value of each."""
    return [
        (key_of(one.topic, one.position, one.subscription), msgspec.json.encode(_Record(_VERSION, *one[3:])))
        for one in cancellations
    ]


def decode(key: str, value: bytes) -> Cancellation:
    """The reverse of `encode_all`.

    Raises:
        UndecodableError: another version wrote it, or it is damaged; it is left alone.
    """
    topic, position, subscription = parse_key(key)
    found = _decoded(_DECODER, value)
    # By place and not by name, because a start reads very many.
    return Cancellation(topic, subscription, position, *msgspec.structs.astuple(found)[1:])


def decode_intent(key: str, value: bytes) -> RescheduleIntent:
    """The reverse of `RescheduleIntent.encoded`; raises as `decode` does."""
    message, token = parse_intent_key(key)
    return RescheduleIntent(*message, token, *msgspec.structs.astuple(_decoded(_INTENT_DECODER, value))[1:])


def _decoded(decoder: msgspec.json.Decoder[_T], value: bytes) -> _T:
    try:
        return decoder.decode(value)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UndecodableError(f"a record of the log cannot be read: {error}") from error
