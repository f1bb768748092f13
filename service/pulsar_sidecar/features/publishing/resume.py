"""Decision where publishing of a file continues in one partition, or that it must not.

It depends on three sides. The broker reports the last sequence id *pushed*: it may be more than what is stored, and it
is less where the broker has forgotten (six hours without the producer, more than 10,000 producers, deduplication off
for a while, a topic that was deleted and created again). The checkpoint names what certainly was stored, and where
nothing was ever sent. The topic itself holds what is stored, as far as it has not been trimmed, and the sidecar reads
it back wherever the other two do not agree.

Invariants: the last record that is known to be stored is resent first, alone, wherever the broker remembers it, and the
broker must refuse it as a duplicate, which shows that it does deduplicate. Records that the broker has pushed and that
are not known to be stored are resent one by one, so that there is neither a gap nor a second copy, whatever became of
them. A file that cannot be shown to be the same, or to lack nothing, is refused.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pulsar_sidecar.features.publishing.checkpoint import SENT_BEFORE, StoredPoint
from pulsar_sidecar.features.publishing.messages import NOTHING_PUBLISHED
from pulsar_sidecar.features.publishing.records import FileRecord
from pulsar_sidecar.model.errors import ConflictError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.payloads import payload_hash

_START_OVER: Final = "publish under another producer name, to a topic that does not hold these records yet"
_BEFORE_THE_FIRST: Final = -1
"""Entry id of the position that an empty topic has."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """Message of the producer as the topic holds it.

    Attributes:
        offset: sequence id of the message.
        payload_hash: hash of `payload_hash`; None where its payload cannot be compared, for example of a message
            whose first chunk was not read.
    """

    offset: int
    position: Position
    payload_hash: int | None


@dataclass(frozen=True, slots=True)
class Tail:
    """Records of a partition from a requested entry on.

    Attributes:
        records: records of the producer, in the topic's order; a message of several chunks counts if its last one is
            there.
        first: position of the first entry that was read, by any producer; of an empty topic the entry -1 of its ledger;
            None where the topic ends before.
    """

    records: tuple[StoredRecord, ...]
    first: Position | None


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Point from which one partition continues.

    Attributes:
        after: last record that is stored; -1 for the beginning.
        pushed: highest record that the broker has received, stored or not; -1 for none.
        stored: records that were read back, by offset, for comparison with the file's records.
        whole_from: byte behind which no record is missing, up to the last of ``stored``.
        is_blank: True if there is no checkpoint, and neither broker nor topic shows anything of the producer there.
    """

    after: int
    pushed: int
    stored: Mapping[int, StoredRecord]
    whole_from: int
    is_blank: bool = False

    @property
    def is_last_remembered(self) -> bool:
        """True if the broker must refuse the record ``after`` as a duplicate."""
        return self.pushed >= self.after > NOTHING_PUBLISHED


def read_back_from(pushed: int, point: StoredPoint | None) -> tuple[bool, Position | None]:
    """Return whether to read the topic back, and from which entry on; None is its beginning.

    ``point`` is the checkpoint's, None without a checkpoint. The broker and the checkpoint are enough where nothing was
    ever sent, and where the broker names the very record that the checkpoint knows to be stored: a broker forgets a
    producer completely, not only its last records.
    """
    if point is None:
        return True, None
    if not point.is_sent:
        return pushed != NOTHING_PUBLISHED, None
    is_empty = point.position is None or point.position.entry_id == _BEFORE_THE_FIRST
    return pushed != point.offset, None if is_empty else point.position


def resume_point(pushed: int, point: StoredPoint | None, tail: Tail | None) -> ResumePoint:
    """Return the point from which to continue.

    ``point`` is None without a checkpoint, and ``tail`` if `read_back_from` needs none.

    Raises:
        ConflictError: the stored messages are unknown, or differ from the checkpoint.
    """
    known = NOTHING_PUBLISHED if point is None or point.offset is None else point.offset
    if tail is None:
        return ResumePoint(known, pushed, stored={}, whole_from=known)
    is_sent = point is not None and point.is_sent
    if point is not None and (not point.is_sent or point == SENT_BEFORE):
        point = None  # It names no entry: nothing of the file was known, or the broker knows more, and it is older.
    is_whole = point is None or _reaches_back(point, tail)
    if point is not None and not is_whole and (pushed < known or pushed == NOTHING_PUBLISHED):
        raise ConflictError(
            f"the broker reports {_named(pushed)} for this producer and the checkpoint {_named(known)}, and the topic "
            f"no longer holds the entry {point.position} of the checkpoint: it was trimmed, or the topic was deleted "
            f"and created again. The sidecar cannot determine what was stored after it; {_remedy(point)}"
        )
    if point is not None and point.offset is not None and is_whole:
        _check_own(point, tail)
    _check_whole(tail.records)
    newer = [each for each in tail.records if each.offset > known]
    _check_ascending(newer)
    if point is None and (is_sent or pushed != NOTHING_PUBLISHED) and not newer:
        raise ConflictError(
            f"the broker reports {_named(pushed)} for this producer, no checkpoint names an entry of it, and the topic "
            "no longer holds any of the producer's messages: nothing shows that they were of this file. Restore the "
            f"checkpoint, or {_START_OVER}"
        )
    return ResumePoint(
        after=newer[-1].offset if newer else known,
        pushed=pushed,
        stored={each.offset: each for each in newer},
        whole_from=known if is_whole and point is not None else newer[0].offset if newer else known,
        is_blank=point is None and pushed == NOTHING_PUBLISHED and not newer,
    )


def check_against_file(points: Sequence[ResumePoint], start: int, records: Iterable[tuple[FileRecord, int]]) -> None:
    """Compare the records of the topic with those of the file.

    A hash has covered the bytes before ``start``, where ``records`` begin; they go at least up to the last one that a
    broker has received.

    Raises:
        ConflictError: the file is not the one that was published, or keys lead to other partitions than before.
    """
    last_known = max(max(point.after, point.pushed) for point in points)
    missed = [{offset for offset in (*point.stored, point.after, point.pushed) if offset >= start} for point in points]
    for record, index in records:
        point = points[index]
        missed[index].discard(record.offset)
        if found := point.stored.get(record.offset):
            if found.payload_hash not in (None, payload_hash(record.payload)):
                raise ConflictError(
                    f"the file has changed: the record at byte {record.offset} is not the one that the topic holds at "
                    f"{found.position}; restore the file that was published, or {_START_OVER}"
                )
        elif point.is_blank and record.offset < last_known:
            raise ConflictError(
                f"partition {index} shows nothing of this producer, and the record at byte {record.offset} belongs "
                f"there, before the record at byte {last_known} that another partition holds: it was trimmed, or "
                f"never stored. The sidecar cannot determine which; restore the checkpoint, or {_START_OVER}"
            )
        elif point.whole_from < record.offset <= point.after:
            raise ConflictError(
                f"the topic lacks the record at byte {record.offset} in partition {index}, and holds later ones of "
                f"this producer: the file, the hashing scheme or the number of partitions has changed; {_START_OVER}"
            )
    for index, left in enumerate(missed):
        if left:
            raise ConflictError(
                f"partition {index} has the sequence id {min(left)} of this producer, and no record of the file that "
                "belongs there begins at this byte: the file was shrunk or changed, its format or hashing scheme is "
                "another one, its last line was published with --complete, or the number of partitions has changed; "
                f"{_START_OVER}"
            )


def _reaches_back(point: StoredPoint, tail: Tail) -> bool:
    """Return True if the tail begins at the point, so that nothing was trimmed in between."""
    if point.position is None or tail.first is None:
        return False
    if point.position.entry_id == _BEFORE_THE_FIRST:
        # The topic's first entry may have arrived since.
        return tail.first.ledger_id == point.position.ledger_id and tail.first.entry_id <= 0
    return tail.first == point.position


def _remedy(point: StoredPoint) -> str:
    if point.offset is None:
        return f"if it was nothing, delete the checkpoint and repeat the command; otherwise {_START_OVER}"
    return _START_OVER


def _check_own(point: StoredPoint, tail: Tail) -> None:
    if not any(each.position == point.position and each.offset == point.offset for each in tail.records):
        raise ConflictError(
            f"the checkpoint names {point.position} as the entry of the record at byte {point.offset}, and there is "
            "another message: this is not the topic that was published to, or it was deleted and created again; "
            f"{_START_OVER}"
        )


def _check_whole(records: Sequence[StoredRecord]) -> None:
    """Refuse incomplete records; only the first one's chunks may precede the part that was read."""
    for each in records[1:]:
        if each.payload_hash is None:
            raise ConflictError(
                f"the topic does not hold the whole record at byte {each.offset}, only what is at {each.position}, and "
                f"brokers take it for stored: it was published while deduplication was off; {_START_OVER}"
            )


def _check_ascending(records: Sequence[StoredRecord]) -> None:
    for one, following in pairwise(records):
        if following.offset <= one.offset:
            raise ConflictError(
                f"the topic holds the sequence id {following.offset} of this producer at {following.position}, after "
                f"{one.offset} at {one.position}: it was published to while deduplication was off; {_START_OVER}"
            )


def _named(offset: int) -> str:
    return "nothing" if offset == NOTHING_PUBLISHED else f"the record at byte {offset}"
