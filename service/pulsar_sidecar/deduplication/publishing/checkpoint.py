"""What the publisher of a file knows of itself when it is started again: how far it came, and of which bytes.

A checkpoint is written only when everything sent is known to be stored, so one number shows how far the file is
published, whatever the number of partitions. It holds SHA-256 sums of the file from its beginning up to some bytes,
the last of which is that number: ``head -c BYTES FILE | sha256sum`` gives the same.

Invariant: a file that a checkpoint fits begins with the very bytes that were published; if it does not, the marks
between which it differs are named.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO, Final

import msgspec

from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.deduplication.publishing.records import RecordFormat
from pulsar_sidecar.deduplication.publishing.routing import HashingScheme
from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position

_VERSION: Final = 1
_MOST_MARKS: Final = 128
_FIRST_STEP_BYTES: Final = 64 * 1024
_READ_BYTES: Final = 1024 * 1024
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


@decodable
class Mark(msgspec.Struct, frozen=True):
    """``sha256`` is that of the file's first ``end`` bytes, as hexadecimal digits."""

    end: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True, slots=True)
class StoredPoint:
    """How far one partition is published.

    Attributes:
        offset: of the last record that is known to be stored there; None before the first.
        position: of that record's entry; before the first record, of the topic's last entry when that record was about
            to be sent, or the entry -1 of an empty topic's ledger; None where nothing is sent, or nothing known of it.
        is_sent: whether any record was ever sent there.
    """

    offset: int | None
    position: Position | None
    is_sent: bool = True


NOTHING_SENT: Final = StoredPoint(None, None, is_sent=False)
SENT_BEFORE: Final = StoredPoint(None, None)
"""Records of the producer are there, and none of them is known to be of this file: the whole topic is read back."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is known to be stored.

    Attributes:
        topic: its full name, without a partition's number.
        partitions: one for each partition, in their order; a topic without partitions has one as well. No record named
            here lies behind ``end``: a run compares no record that the checkpoint names, so the sums must cover it.
        is_partitioned: distinguishes a topic of one partition from one without.
        records: so many records are published.
        marks: ascending; the last one's ``end`` is how many bytes of the file are published; none at the beginning.
    """

    topic: str
    producer_name: str
    record_format: RecordFormat
    hashing: HashingScheme
    is_partitioned: bool
    partitions: tuple[StoredPoint, ...]
    records: int
    marks: tuple[Mark, ...]

    @property
    def end(self) -> int:
        """So many bytes of the file are published; no record begins before and ends behind."""
        return self.marks[-1].end if self.marks else 0

    def to_json(self) -> str:
        """Inverse of `checkpoint_of`."""
        document = _Document(
            _VERSION,
            self.topic,
            self.producer_name,
            self.record_format,
            self.hashing,
            self.is_partitioned,
            [
                _Partition(each.offset, None if each.position is None else str(each.position), each.is_sent)
                for each in self.partitions
            ],
            self.records,
            self.marks,
        )
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def checkpoint_of(text: str) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        InvalidInputError: the text is not a checkpoint that this version writes.
    """
    try:
        version = msgspec.json.decode(text, type=_Version).version
        if version != _VERSION:
            raise InvalidInputError(f"it is of version {version!r:.20}; this program knows {_VERSION}")
        found = msgspec.json.decode(text, type=_Document)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInputError(f"it is damaged ({error})") from error
    ends = [each.end for each in found.published]
    is_covered = all(each.offset is None or each.offset < max(ends, default=0) for each in found.partitions)
    if not found.partitions or ends != sorted(set(ends)) or not is_covered:
        raise InvalidInputError("it is damaged: its numbers do not fit together")
    return Checkpoint(
        topic=found.topic,
        producer_name=found.producer_name,
        record_format=found.format,
        hashing=found.hashing_scheme,
        is_partitioned=found.is_partitioned,
        partitions=tuple(
            StoredPoint(each.offset, _position(each.message_id), each.is_sent) for each in found.partitions
        ),
        records=found.records,
        marks=found.published,
    )


def check_same_job(
    checkpoint: Checkpoint, topic: str, producer_name: str, record_format: RecordFormat, hashing: HashingScheme
) -> None:
    """Raises ConflictError if the checkpoint is of another topic, producer, format or hashing scheme."""
    for what, had, has in (
        ("topic", checkpoint.topic, topic),
        ("producer name", checkpoint.producer_name, producer_name),
        ("format", checkpoint.record_format.value, record_format.value),
        ("hashing scheme", checkpoint.hashing.value, hashing.value),
    ):
        if had != has:
            raise ConflictError(
                f"the checkpoint is of {what} {had}, and this is {has}; name another --checkpoint for another job"
            )


# --- the file's bytes ----------------------------------------------------------------------------------------------


class RollingHash:
    """The SHA-256 sum of a file's beginning, and what it was at some bytes before.

    Marks stand so far apart that there are at most 128: what differs is found to about a hundredth of the file.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._marks: list[Mark] = []
        self._step = _FIRST_STEP_BYTES
        self.end = 0

    def feed(self, data: bytes) -> None:
        """The file's next bytes."""
        self._hash.update(data)
        self.end += len(data)
        if self.end - (self._marks[-1].end if self._marks else 0) >= self._step:
            self._marks.append(self._here())
        if len(self._marks) >= _MOST_MARKS - 1:
            self._marks = self._marks[1::2]
            self._step *= 2

    def marks(self) -> tuple[Mark, ...]:
        """All, the last of which is of everything fed so far."""
        if not self.end or (self._marks and self._marks[-1].end == self.end):
            return tuple(self._marks)
        return (*self._marks, self._here())

    def _here(self) -> Mark:
        return Mark(self.end, self._hash.hexdigest())


def verified(
    file: BinaryIO, size: int, marks: Sequence[Mark], report: Callable[[int, int], None] = lambda done, total: None
) -> RollingHash:
    """Read the file's beginning again, up to the last mark; its rolling hash at that byte.

    Raises:
        ConflictError: it is not what was published; the text names the bytes between which it differs.
    """
    rolling = RollingHash()
    if marks and size < marks[-1].end:
        raise ConflictError(
            f"the file is {format_count(size, 'byte')} long, and {format_count(marks[-1].end, 'byte')} of "
            "it had been published: it was shrunk or replaced"
        )
    file.seek(0)
    for mark in marks:
        before = rolling.end
        while rolling.end < mark.end:
            data = file.read(min(_READ_BYTES, mark.end - rolling.end))
            if not data:
                raise ConflictError(f"the file was cut off at byte {rolling.end} while it was read")
            rolling.feed(data)
            report(rolling.end, marks[-1].end)
        if rolling.marks()[-1].sha256 != mark.sha256:
            same = f"the same up to byte {before}" if before else "another one from the beginning, or replaced"
            raise ConflictError(
                f"the file has changed between the bytes {before} and {mark.end}, which are published: it is {same}; "
                "restore the bytes that were published, or publish the new file under another producer name"
            )
    return rolling


# --- what is written -----------------------------------------------------------------------------------------------


@decodable
class _Version(msgspec.Struct):
    version: Any


@decodable
class _Partition(msgspec.Struct, rename="camel", omit_defaults=True):
    offset: _Number | None
    message_id: Annotated[str, msgspec.Meta(pattern=r"^\d{1,19}:(-1|\d{1,19})$")] | None
    is_sent: bool = True


@decodable
class _Document(msgspec.Struct, rename="camel"):
    version: int
    topic: str
    producer_name: str
    format: RecordFormat
    hashing_scheme: HashingScheme
    is_partitioned: bool
    partitions: Sequence[_Partition]
    records: _Number
    published: tuple[Mark, ...]


def _position(message_id: str | None) -> Position | None:
    if message_id is None:
        return None
    ledger_id, entry_id = map(int, message_id.split(":"))
    return Position(LedgerId(ledger_id), EntryId(entry_id))
