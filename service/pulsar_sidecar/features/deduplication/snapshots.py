"""Snapshot of last-sequence-persisted (PIP-6), which a broker stores with the deduplication cursor's position.

A broker that loads the topic takes it from the last entry of the cursor's ledger, or from the cursor's node if that
names no ledger (``ManagedCursorImpl.recover``). If the ledger is gone or empty, it begins with an empty map.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pulsar_sidecar.features.deduplication.results import ENTRY_SUFFIX, LEDGER_SUFFIX, ReplicatedPosition
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.topic_stats import REPLICATOR_PREFIX
from pulsar_sidecar.ownership.exact_decoding import decode_exactly, exact_text, unwrap
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Map that a broker would recover before it replays the entries after ``position``.

    Attributes:
        sequences: last-sequence-persisted by stored names, as signed 64-bit numbers.
        size_bytes: bytes that the broker wrote for it.
        ledger_id: the cursor's ledger that holds it, None if the cursor's node does.
        entry_id: its entry in that ledger.
        lost: reason why a broker recovers nothing although it had written the snapshot; None if nothing is lost.
    """

    position: Position
    sequences: Mapping[str, int]
    size_bytes: int
    ledger_id: LedgerId | None = None
    entry_id: EntryId | None = None
    lost: str | None = None


def snapshot_in_entry(payload: bytes, ledger_id: LedgerId, entry_id: EntryId) -> Snapshot:
    """Decode the snapshot in an entry of the cursor's ledger (``PositionInfo``); `UndecodableError` if not whole."""
    info = decode_exactly(ml.PositionInfo, payload)
    position = Position(LedgerId(info.ledgerId), EntryId(info.entryId))
    return Snapshot(position, _sequences(info.properties), len(payload), ledger_id, entry_id)


def snapshot_in_node(data: bytes) -> Snapshot:
    """Decode the snapshot in the cursor's own node (``ManagedCursorInfo``); `UndecodableError` if it is not whole."""
    info = decode_exactly(ml.ManagedCursorInfo, unwrap(data))
    return Snapshot(_position(info), _sequences(info.properties), len(data))


def lost_snapshot(data: bytes, reason: str) -> Snapshot:
    """Return the snapshot of a cursor without entries: the node's position, and no sequence id (``initialize``)."""
    return Snapshot(_position(decode_exactly(ml.ManagedCursorInfo, unwrap(data))), {}, len(data), lost=reason)


def replicated_positions(sequences: Mapping[str, int]) -> Iterator[ReplicatedPosition]:
    """Yield the pairs of ledger and entry id that replicators keep in place of sequence ids."""
    for name, ledger_id in sequences.items():
        producer = name.removesuffix(LEDGER_SUFFIX)
        entry_id = sequences.get(f"{producer}{ENTRY_SUFFIX}")
        if name.startswith(REPLICATOR_PREFIX) and producer != name and entry_id is not None:
            yield ReplicatedPosition(producer, str(Position(LedgerId(ledger_id), EntryId(entry_id))))


def _position(info: ml.ManagedCursorInfo) -> Position:
    return Position(LedgerId(info.markDeleteLedgerId), EntryId(info.markDeleteEntryId))


def _sequences(properties: Iterable[ml.LongProperty]) -> dict[str, int]:
    """Map names to sequence ids; of a name that is stored twice the later one counts, as for a broker."""
    return {exact_text(each.name): each.value for each in properties}
