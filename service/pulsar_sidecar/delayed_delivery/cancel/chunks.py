"""Where the other chunks of a chunked message lie (PIP-37)."""

from collections.abc import Mapping

from pulsar_sidecar.delayed_delivery.cancel.facts import Chunk, EntryAnswer, EntryFacts
from pulsar_sidecar.model.ids import EntryId, Position

_OTHERS_BETWEEN = 8
"""Entries of other producers that are looked through for each chunk, at least `_NEAR` in each direction."""
_NEAR = 64
_FARTHEST = 4000


def chunk_candidates(position: Position, chunk: Chunk) -> list[Position]:
    """The entries around one chunk among which the others are looked for: those of its ledger, not too far away.

    A producer sends the chunks of a message one after the other, but others' messages may come in between.
    """
    before = min(_FARTHEST, chunk.chunk_id * _OTHERS_BETWEEN + _NEAR if chunk.chunk_id else 0)
    left = chunk.total - 1 - chunk.chunk_id
    after = min(_FARTHEST, left * _OTHERS_BETWEEN + _NEAR if left else 0)
    first = max(0, position.entry_id - before)
    return [
        Position(position.ledger_id, EntryId(entry))
        for entry in range(first, position.entry_id + after + 1)
        if entry != position.entry_id
    ]


def chunks_of(facts: EntryFacts, entries: Mapping[Position, EntryAnswer]) -> dict[int, Position]:
    """The positions of a message's chunks by chunk id; of a chunk that was sent twice, the later one."""
    assert facts.chunk is not None
    found: dict[int, Position] = {}
    for position in sorted(entries):
        answer = entries[position]
        if (
            isinstance(answer, EntryFacts)
            and answer.chunk is not None
            and answer.chunk.uuid == facts.chunk.uuid
            and answer.producer_name == facts.producer_name
        ):
            found[answer.chunk.chunk_id] = position
    return found
