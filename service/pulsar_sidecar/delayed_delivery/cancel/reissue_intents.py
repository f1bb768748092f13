"""What is to be published again, as the log keeps it before anything is published, and which of several intents counts.

Every attempt has a key and a token of its own, and its copy carries the token in a property. The log has one order for
all sidecars, so all of them take the same intent for the one that may publish: whoever comes second publishes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

from pulsar_sidecar.delayed_delivery.cancel.facts import EntryAnswer, EntryFacts, Unreadable
from pulsar_sidecar.delayed_delivery.cancel.log_records import key_of, parse_key
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import EntryId, LedgerId
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.positions import Position

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
        document = {
            "version": _VERSION,
            "deliverAt": self.deliver_at_ms,
            "newDeliverAt": self.new_deliver_at_ms,
            "requestedMs": self.requested_ms,
            "after": [self.after.ledger_id, self.after.entry_id],
            "requestedBy": self.requested_by,
            "copy": self.copy,
            "done": self.done,
        }
        return self.key, orjson.dumps(document)


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
        document = orjson.loads(value)
        if document["version"] != _VERSION:
            raise UndecodableError("an intent of the log has another version; another version wrote it")
        ledger_id, entry_id = map(int, document["after"])
        new_deliver_at = document["newDeliverAt"]
        return ReissueIntent(
            topic,
            position,
            token,
            int(document["deliverAt"]),
            None if new_deliver_at is None else int(new_deliver_at),
            int(document["requestedMs"]),
            Position(LedgerId(ledger_id), EntryId(entry_id)),
            document["requestedBy"],
            document["copy"],
            bool(document["done"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UndecodableError(f"an intent of the log cannot be read: {type(error).__name__}") from error


@dataclass(slots=True)
class ReissueIntents:
    """The intents that the log holds, by message, in its order; not thread-safe by itself."""

    _by_message: dict[Message, dict[str, ReissueIntent]] = field(default_factory=dict)
    _unseen: set[str] = field(default_factory=set)

    def apply(self, key: str, value: bytes | None) -> None:
        """A record of the log.

        Raises:
            UndecodableError: another version wrote it; it is left alone.
        """
        message, token = _parse_key(key)
        self._unseen.discard(key)
        if value:
            self._by_message.setdefault(message, {})[token] = _decode(key, value)
            return
        self._forget(message, token)

    def valid(self, message: Message) -> ReissueIntent | None:
        """The intent that counts: the one whose copy is stored, or else the first in the log."""
        intents = list(self._by_message.get(message, {}).values())
        return next((one for one in intents if one.copy is not None), intents[0] if intents else None)

    def holds(self, intent: ReissueIntent) -> bool:
        """Whether the intent's record has been read from the log."""
        return intent.token in self._by_message.get((intent.topic, intent.position), {})

    def all(self) -> list[ReissueIntent]:
        """Every intent, those that do not count among them."""
        return [one for intents in self._by_message.values() for one in intents.values()]

    def mark_unseen(self) -> None:
        """The log is read from its beginning now."""
        self._unseen = {one.key for one in self.all()}

    def sweep_unseen(self) -> None:
        """Forget what the log no longer holds."""
        for key in self._unseen:
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
