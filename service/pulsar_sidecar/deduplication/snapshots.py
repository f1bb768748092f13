"""A snapshot of last-sequence-persisted (PIP-6), as a broker left it with the deduplication cursor's position.

A broker that loads the topic takes it from the last entry of the cursor's ledger, or from the cursor's node if that
names no ledger (``ManagedCursorImpl.recover``). If the ledger is gone or empty it begins with an empty map.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pulsar_sidecar.ledger_ownership.exact_decoding import decode_exactly, exact_text, unwrap
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.topic_stats import REPLICATOR_PREFIX
from pulsar_sidecar.wire import MLDataFormats_pb2 as ml

LEDGER_SUFFIX: Final = "_LID"
ENTRY_SUFFIX: Final = "_EID"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a broker would recover before it replays the entries after ``position``.

    Attributes:
        sequences: last-sequence-persisted, by the names that are stored: signed 64-bit numbers.
        size_bytes: what the broker wrote for it.
        ledger_id: the cursor's ledger that holds it, None if the cursor's node does.
        entry_id: the entry of that ledger.
        lost: why nothing is recovered although the broker had written it; None if nothing was lost.
    """

    position: Position
    sequences: Mapping[str, int]
    size_bytes: int
    ledger_id: LedgerId | None = None
    entry_id: EntryId | None = None
    lost: str | None = None


@dataclass(frozen=True, slots=True)
class ReplicatedPosition:
    """How far a replicator has come, which counts by the source's positions (``supportsReplDedupByLidAndEid``)."""

    producer: str
    position: Position


def snapshot_in_entry(payload: bytes, ledger_id: LedgerId, entry_id: EntryId) -> Snapshot:
    """The snapshot in an entry of the cursor's ledger (``PositionInfo``); `UndecodableError` if it is not whole."""
    info = decode_exactly(ml.PositionInfo, payload)
    position = Position(LedgerId(info.ledgerId), EntryId(info.entryId))
    return Snapshot(position, _sequences(info.properties), len(payload), ledger_id, entry_id)


def snapshot_in_node(data: bytes) -> Snapshot:
    """The snapshot in the cursor's own node (``ManagedCursorInfo``); `UndecodableError` if it is not whole."""
    info = decode_exactly(ml.ManagedCursorInfo, unwrap(data))
    return Snapshot(_position(info), _sequences(info.properties), len(data))


def lost_snapshot(data: bytes, reason: str) -> Snapshot:
    """What is left if the cursor's ledger holds nothing: the node's position, and no sequence id (``initialize``)."""
    return Snapshot(_position(decode_exactly(ml.ManagedCursorInfo, unwrap(data))), {}, len(data), lost=reason)


def replicated_positions(sequences: Mapping[str, int]) -> Iterator[ReplicatedPosition]:
    """The pairs of ledger and entry id that replicators keep in place of sequence ids."""
    for name, ledger_id in sequences.items():
        producer = name.removesuffix(LEDGER_SUFFIX)
        entry_id = sequences.get(f"{producer}{ENTRY_SUFFIX}")
        if name.startswith(REPLICATOR_PREFIX) and producer != name and entry_id is not None:
            yield ReplicatedPosition(producer, Position(LedgerId(ledger_id), EntryId(entry_id)))


def _position(info: ml.ManagedCursorInfo) -> Position:
    return Position(LedgerId(info.markDeleteLedgerId), EntryId(info.markDeleteEntryId))


def _sequences(properties: Iterable[ml.LongProperty]) -> dict[str, int]:
    """Of a name that is stored twice the later number, as for a broker."""
    return {exact_text(each.name): each.value for each in properties}
