"""The log's records: one key for each topic, position and subscription, and what is known of that cancellation.

The newest record of a key counts (compaction keeps it), and an empty one forgets the key.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, Literal

import msgspec

from pulsar_sidecar.delayed_delivery.cancel.requests import Cancellation, CancellationStatus, Cause
from pulsar_sidecar.model.errors import InvalidInputError, UndecodableError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName, java_url_decode, java_url_encode, parse_topic_name

_VERSION: Final = 1
_PARTS: Final = 3
_REMEMBERED: Final = 4096


class _Record(msgspec.Struct, rename="camel", omit_defaults=True):
    """The value, in the order in which its fields are written."""

    version: Literal[1]
    deliver_at: int
    requested_ms: int
    proof: CancellationStatus
    positions: tuple[Position, ...] = ()
    cause: Cause | None = None
    reason: str | None = None
    requested_by: str | None = None


_DECODER: Final = msgspec.json.Decoder(_Record)


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
    return msgspec.json.encode(
        _Record(
            _VERSION,
            cancellation.deliver_at_ms,
            cancellation.requested_ms,
            cancellation.status,
            cancellation.positions,
            cancellation.cause,
            cancellation.reason,
            cancellation.requested_by,
        )
    )


def decode(key: str, value: bytes) -> Cancellation:
    """The reverse of `encode_all`.

    Raises:
        UndecodableError: another version wrote it, or it is damaged; it is left alone.
    """
    topic, position, subscription = parse_key(key)
    try:
        record = _DECODER.decode(value)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UndecodableError(f"a record of the log cannot be read: {error}") from error
    # By place and not by name, because a start reads very many.
    return Cancellation(
        topic,
        subscription,
        position,
        record.deliver_at,
        record.requested_ms,
        record.proof,
        record.positions,
        record.cause,
        record.reason,
        record.requested_by,
    )
