"""What is to be published again, as the log keeps it before anything is published, and which of several intents counts.

Every attempt has a key and a token of its own, and its copy carries the token in a property. The log has one order for
all sidecars, so all of them take the same intent for the one that may publish: whoever comes second publishes nothing.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from pulsar_sidecar.delayed_delivery.cancel.facts import EntryAnswer, EntryFacts, Unreadable
from pulsar_sidecar.delayed_delivery.cancel.log_records import key_of, parse_key
from pulsar_sidecar.delayed_delivery.ports import CancellationTopic
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName

REPLACES_PROPERTY: Final = "pulsar-sidecar-replaces"
"""On a message that was published again: the message id of the one it stands for."""
REISSUE_PROPERTY: Final = "pulsar-sidecar-reissue"
"""On a message that was published again: the token of the intent."""
_VERSION: Final = 1
_SEPARATORS: Final = 3

Message = tuple[TopicName, Position]


@dataclass(frozen=True, slots=True)
class ReissueIntent:
    """A message that is to be published again, and cancelled.

    Attributes:
        token: names this attempt.
        deliver_at_ms: the message's due time.
        new_deliver_at_ms: the copy's, None for "now".
        after: the copy is stored beyond this position.
        copy: the copy's message id, once it is known to be stored.
        done: whether the old message was cancelled as well.
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

    @property
    def key(self) -> str:
        """The record's key."""
        return f"{key_of(self.topic, self.position, '')}|{self.token}"

    def encoded(self) -> tuple[str, bytes]:
        """Key and value."""
        record = _Record(
            _VERSION,
            self.deliver_at_ms,
            self.new_deliver_at_ms,
            self.requested_ms,
            self.after,
            self.requested_by,
            self.copy,
            self.done,
        )
        return self.key, msgspec.json.encode(record)


class _Record(msgspec.Struct, rename="camel"):
    """The value, in the order in which its fields are written."""

    version: Literal[1]
    deliver_at: int
    new_deliver_at: int | None
    requested_ms: int
    after: Position
    requested_by: str | None
    copy: str | None
    done: bool


_DECODER: Final = msgspec.json.Decoder(_Record)


def is_intent_key(key: str) -> bool:
    """Whether a record of the log is about publishing a message again."""
    return key.count("|") == _SEPARATORS


def _parse_key(key: str) -> tuple[Message, str]:
    of_message, _, token = key.rpartition("|")
    topic, position, _ = parse_key(of_message)
    return (topic, position), token


def _decode(key: str, value: bytes) -> ReissueIntent:
    (topic, position), token = _parse_key(key)
    try:
        found = _DECODER.decode(value)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UndecodableError(f"an intent of the log cannot be read: {error}") from error
    return ReissueIntent(
        topic,
        position,
        token,
        found.deliver_at,
        found.new_deliver_at,
        found.requested_ms,
        found.after,
        found.requested_by,
        found.copy,
        found.done,
    )


class ReissueIntents:
    """The intents that the log holds, by message, in its order; safe for use by several threads.

    Invariant: nothing is known here that was not read back from the log, so all sidecars know it in the same order.
    """

    def __init__(self, topic: CancellationTopic) -> None:
        self._topic = topic
        self._lock = threading.RLock()
        self._by_message: dict[Message, dict[str, ReissueIntent]] = {}
        self._unseen: set[str] = set()

    def write(self, intent: ReissueIntent) -> None:
        """Make it durable.

        Raises:
            TemporaryError: it is not known to be stored.
        """
        self._topic.append([intent.encoded()])

    def drop(self, intent: ReissueIntent) -> None:
        """Remove it from the log; raises as `write` does."""
        self._topic.append([(intent.key, None)])

    def apply(self, key: str, value: bytes | None) -> None:
        """A record of the log.

        Raises:
            UndecodableError: another version wrote it; it is left alone.
        """
        message, token = _parse_key(key)
        with self._lock:
            self._unseen.discard(key)
            if value:
                self._by_message.setdefault(message, {})[token] = _decode(key, value)
            else:
                self._forget(message, token)

    def valid(self, message: Message) -> ReissueIntent | None:
        """The intent that counts: the one whose copy is stored, or else the first in the log."""
        with self._lock:
            intents = list(self._by_message.get(message, {}).values())
        return next((one for one in intents if one.copy is not None), intents[0] if intents else None)

    def holds(self, intent: ReissueIntent) -> bool:
        """Whether the intent's record has been read from the log."""
        with self._lock:
            return intent.token in self._by_message.get((intent.topic, intent.position), {})

    def all(self) -> list[ReissueIntent]:
        """Every intent, those that do not count among them."""
        with self._lock:
            return [one for intents in self._by_message.values() for one in intents.values()]

    def mark_unseen(self) -> None:
        """The log is read from its beginning now."""
        with self._lock:
            self._unseen = {one.key for one in self.all()}

    def sweep_unseen(self, *, complete: bool) -> None:
        """Forget what the log no longer holds; nothing where it could not be read as a whole."""
        with self._lock:
            for key in self._unseen if complete else ():
                self._forget(*_parse_key(key))
            self._unseen = set()

    def _forget(self, message: Message, token: str) -> None:
        intents = self._by_message.get(message, {})
        intents.pop(token, None)
        if not intents:
            self._by_message.pop(message, None)


@dataclass(frozen=True, slots=True)
class CopySearch:
    """How far an intent's copy has been looked for.

    Attributes:
        until: everything stored since the intent up to here was read, but for what is ``unreadable``.
        parts: the entries that carry the intent's token: the copy, or chunks of it.
        unreadable: entries that could not be read so far.
    """

    until: Position
    parts: Mapping[Position, EntryFacts] = field(default_factory=dict)
    unreadable: tuple[Position, ...] = ()

    def having_read(self, intent: ReissueIntent, answers: Mapping[Position, EntryAnswer]) -> "CopySearch":
        """The search after these entries, among them all that had been unreadable."""
        parts = {
            at: facts
            for at, facts in answers.items()
            if isinstance(facts, EntryFacts) and facts.properties.get(REISSUE_PROPERTY) == intent.token
        }
        unreadable = sorted(at for at, answer in answers.items() if isinstance(answer, Unreadable))
        return CopySearch(max(self.until, *answers), {**self.parts, **parts}, tuple(unreadable))

    def copy(self) -> Position | None:
        """The copy: its last chunk, if it has several and all of them are there."""
        chunks = {facts.chunk.chunk_id if facts.chunk else 0: position for position, facts in self.parts.items()}
        total = next((facts.chunk.total for facts in self.parts.values() if facts.chunk), 1)
        return max(chunks.values()) if chunks and len(chunks) == total else None
