"""The log's records: one key for each topic, position and subscription, and what is known of that cancellation.

The newest record of a key counts (compaction keeps it), and an empty one forgets the key.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import orjson

from pulsar_sidecar.delayed_delivery.cancel.requests import Cancellation, CancellationStatus, Cause
from pulsar_sidecar.model.errors import InvalidInputError, UndecodableError
from pulsar_sidecar.model.ids import EntryId, LedgerId
from pulsar_sidecar.model.names import TopicName, java_url_decode, java_url_encode, parse_topic_name
from pulsar_sidecar.model.positions import Position

_VERSION: Final = 1
_PARTS: Final = 3
_REMEMBERED: Final = 4096
_PROOFS: Final[Mapping[str, CancellationStatus]] = {status.value: status for status in CancellationStatus}


def key_of(topic: TopicName, position: Position, subscription: str) -> str:
    """The record's key: ``<encoded topic>|<ledger>:<entry>|<encoded subscription>``."""
    before, after = _around(topic, subscription)
    return _key(before, position, after)


def _key(before: str, position: Position, after: str) -> str:
    ledger_id, entry_id = position
    return f"{before}{ledger_id}:{entry_id}{after}"


@lru_cache(_REMEMBERED)
def _around(topic: TopicName, subscription: str) -> tuple[str, str]:
    return f"{java_url_encode(str(topic))}|", f"|{java_url_encode(subscription)}"


@lru_cache(_REMEMBERED)
def _topic(encoded: str) -> TopicName:
    return parse_topic_name(java_url_decode(encoded))


@lru_cache(_REMEMBERED)
def _subscription(encoded: str) -> str:
    return java_url_decode(encoded)


def parse_key(key: str) -> tuple[TopicName, Position, str]:
    """The reverse of `key_of`.

    Raises:
        UndecodableError: it is none of ours.
    """
    parts = key.split("|")
    if len(parts) != _PARTS:
        raise UndecodableError("a key of the log has another form; another version wrote it")
    try:
        ledger_id, entry_id = map(int, parts[1].split(":"))
        return _topic(parts[0]), Position(LedgerId(ledger_id), EntryId(entry_id)), _subscription(parts[2])
    except (ValueError, InvalidInputError) as error:
        raise UndecodableError("a key of the log cannot be read; another version wrote it") from error


def encode_all(cancellations: Iterable[Cancellation]) -> list[tuple[str, bytes]]:
    """Key and value of each; what those of one place have in common is looked up once."""
    records: list[tuple[str, bytes]] = []
    topic, subscription, before, after = None, None, "", ""
    for one in cancellations:
        if one.topic is not topic or one.subscription != subscription:
            topic, subscription = one.topic, one.subscription
            before, after = _around(topic, subscription)
        records.append((_key(before, one.position, after), _value(one)))
    return records


def _value(cancellation: Cancellation) -> bytes:
    document: dict[str, object] = {
        "version": _VERSION,
        "deliverAt": cancellation.deliver_at_ms,
        "requestedMs": cancellation.requested_ms,
        "proof": cancellation.status.value,
    }
    if cancellation.positions:
        document["positions"] = [[found.ledger_id, found.entry_id] for found in cancellation.positions]
    if cancellation.cause is not None:
        document["cause"] = cancellation.cause.value
    if cancellation.reason is not None:
        document["reason"] = cancellation.reason
    if cancellation.requested_by is not None:
        document["requestedBy"] = cancellation.requested_by
    return orjson.dumps(document)


def decode(key: str, value: bytes) -> Cancellation:
    """The reverse of `encode`.

    Raises:
        UndecodableError: another version wrote it, or it is damaged; it is left alone.
    """
    topic, position, subscription = parse_key(key)
    try:
        document = orjson.loads(value)
        due_ms, requested_ms, cause = document["deliverAt"], document["requestedMs"], document.get("cause")
        _check(document["version"] == _VERSION and type(due_ms) is int and type(requested_ms) is int)
        # By place and not by name, because a start reads very many.
        return Cancellation(
            topic,
            subscription,
            position,
            due_ms,
            requested_ms,
            _PROOFS[document["proof"]],
            _positions(document["positions"]) if "positions" in document else (),
            None if cause is None else Cause(cause),
            document.get("reason"),
            document.get("requestedBy"),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UndecodableError(f"a record of the log cannot be read: {type(error).__name__}") from error


def _positions(pairs: Sequence[tuple[LedgerId, EntryId]]) -> tuple[Position, ...]:
    found = tuple(Position(ledger_id, entry_id) for ledger_id, entry_id in pairs)
    _check(all(type(number) is int for position in found for number in position))
    return found


def _check(is_right: bool) -> None:
    if not is_right:
        raise TypeError("a field has another type")
