"""Reads what brokers answer about the ledgers and the bundles they use.

Invariant: an answer that lacks a part is no view of less; it is a `TemporaryError`, because what a view leaves out
might be deleted.
"""

import json
from collections.abc import Mapping
from typing import Final

from pulsar_sidecar.ledger_deletion.ports import OwnerView
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import CursorName, TopicName

_NO_LEDGER: Final = -1
_COMPACTION_CURSOR: Final = "__compaction"
_COMPACTED_LEDGER_PROPERTY: Final = "CompactedTopicLedger"


def owner_view(broker_id: str, topic: TopicName, document: object) -> OwnerView:
    """The view in an ``internalStats`` answer (``PersistentTopicInternalStats``).

    Raises:
        TemporaryError: the answer has not the shape that Pulsar gives it.
    """
    try:
        return _view(broker_id, _mapping(document))
    except (KeyError, TypeError, ValueError) as error:
        raise TemporaryError(f"broker {broker_id} answered something else than internal stats of {topic}") from error


def owning_url(data: bytes, topic: TopicName) -> str:
    """The web service URL in a bundle's ownership node (``NamespaceEphemeralData``)."""
    try:
        document = _mapping(json.loads(data))
    except (TypeError, ValueError) as error:
        raise TemporaryError(f"the ownership of {topic}'s bundle cannot be read; try again") from error
    url = document.get("httpUrl") or document.get("httpUrlTls")
    if not isinstance(url, str):
        raise TemporaryError(f"the owner of {topic}'s bundle names no web service URL; try again")
    return url.rstrip("/")


def owned_bundles(document: object, broker_id: str) -> frozenset[str]:
    """The active bundles in an ``ownedNamespaces`` answer, as ``namespace/range``."""
    if not isinstance(document, dict):
        raise TemporaryError(f"broker {broker_id} did not list the bundles it owns; try again")
    return frozenset(name for name, status in document.items() if isinstance(status, dict) and status.get("is_active"))


def _view(broker_id: str, document: Mapping[str, object]) -> OwnerView:
    cursors = {name: _mapping(cursor) for name, cursor in _mapping(document["cursors"]).items()}
    # The cursor's property is what is stored; the open handle may lag behind it by one compaction, or not be open yet.
    opened = _ledger(_mapping(document["compactedLedger"]))
    stored = _stored_compacted_ledger(cursors.get(_COMPACTION_CURSOR))
    return OwnerView(
        broker=broker_id,
        cursors=frozenset(CursorName(name) for name in cursors),
        ledgers=frozenset(_ledgers(document["ledgers"])),
        cursor_ledgers=frozenset(
            LedgerId(ledger) for cursor in cursors.values() if (ledger := _integer(cursor["cursorLedger"])) >= 0
        ),
        schema_ledgers=frozenset(_ledgers(document["schemaLedgers"])),
        compacted_ledger=next((ledger for ledger in (stored, opened) if ledger != _NO_LEDGER), None),
        reading=frozenset(
            ledger
            for ledger in (opened, *(_read_ledger(cursor["readPosition"]) for cursor in cursors.values()))
            if ledger != _NO_LEDGER
        ),
    )


def _stored_compacted_ledger(cursor: Mapping[str, object] | None) -> LedgerId:
    properties = cursor.get("properties") if cursor is not None else None
    ledger = properties.get(_COMPACTED_LEDGER_PROPERTY) if isinstance(properties, dict) else None
    return LedgerId(_NO_LEDGER if ledger is None else _integer(ledger))


def _ledgers(items: object) -> list[LedgerId]:
    if not isinstance(items, list):
        raise TypeError("a list of ledgers was expected")
    return [_ledger(_mapping(item)) for item in items]


def _ledger(item: Mapping[str, object]) -> LedgerId:
    return LedgerId(_integer(item["ledgerId"]))


def _read_ledger(position: object) -> LedgerId:
    ledger, _, _ = str(position).partition(":")
    return LedgerId(int(ledger))


def _integer(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError("a number was expected")
    return value


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise TypeError("an object was expected")
    return value
