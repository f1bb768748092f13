"""Checkpoint of a file's publisher, for the next run: how far it came, and of which bytes.

A checkpoint is written only when everything sent is known to be stored, so one number shows how far the file is
published, whatever the number of partitions. It holds SHA-256 sums of the file's beginning up to several bytes, the
last of which is that number: ``head -c BYTES FILE | sha256sum`` gives the same.

Invariant: a file that matches a checkpoint begins with the very bytes that were published; otherwise the error names
the marks between which it differs.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO, Final

import msgspec

from pulsar_sidecar.features.publishing.records import RecordFormat
from pulsar_sidecar.features.publishing.routing import HashingScheme
from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.reports.formatting import format_count

_VERSION: Final = 1
_MOST_MARKS: Final = 128
_FIRST_STEP_BYTES: Final = 64 * 1024
_READ_BYTES: Final = 1024 * 1024
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


@decodable
class Mark(msgspec.Struct, frozen=True):
    """Sum of the file's first ``end`` bytes; ``sha256`` is in hexadecimal digits."""

    end: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True, slots=True)
class StoredPoint:
    """Progress of one partition.

    Attributes:
        offset: offset of the last record that is known to be stored there; None before the first.
        position: position of that record's entry; before the first record, of the topic's last entry when that record
            was about to be sent, or the entry -1 of an empty topic's ledger; None where nothing is sent or known.
        is_sent: True if any record was ever sent there.
    """

    offset: int | None
    position: Position | None
    is_sent: bool = True


NOTHING_SENT: Final = StoredPoint(None, None, is_sent=False)
SENT_BEFORE: Final = StoredPoint(None, None)
"""The producer has records there, and none of them is known to be of this file: the whole topic is read back."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Records that are known to be stored.

    Attributes:
        topic: full name, without a partition's number.
        partitions: progress of each partition in order; a topic without partitions has one as well. No record named
            here is behind ``end``: a run compares no record that the checkpoint names, so the sums must cover it.
        is_partitioned: distinguishes a topic of one partition from one without.
        records: number of published records.
        marks: marks, ascending; the last one's ``end`` is the number of published bytes; empty at the beginning.
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
        """Number of published bytes of the file; no record begins before and ends behind."""
        return self.marks[-1].end if self.marks else 0

    def to_json(self) -> str:
        """Encode the checkpoint; inverse of `checkpoint_of`."""
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
        InvalidInputError: the text is not a checkpoint of this version.
    """
    try:
        version = msgspec.json.decode(text, type=_Version).version
        if version != _VERSION:
            raise InvalidInputError(f"it has version {version!r:.20}; this program supports {_VERSION}")
        found = msgspec.json.decode(text, type=_Document)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInputError(f"it is damaged ({error})") from error
    ends = [each.end for each in found.published]
    is_covered = all(each.offset is None or each.offset < max(ends, default=0) for each in found.partitions)
    if not found.partitions or ends != sorted(set(ends)) or not is_covered:
        raise InvalidInputError("it is damaged: its numbers are inconsistent")
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
    """Raise `ConflictError` if the checkpoint is of another topic, producer, format or hashing scheme."""
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
    """SHA-256 sum of a file's beginning, with its values at earlier bytes.

    There are at most 128 marks: a difference is located to about a hundredth of the file.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._marks: list[Mark] = []
        self._step = _FIRST_STEP_BYTES
        self.end = 0

    def feed(self, data: bytes) -> None:
        """Add the file's next bytes."""
        self._hash.update(data)
        self.end += len(data)
        if self.end - (self._marks[-1].end if self._marks else 0) >= self._step:
            self._marks.append(self._here())
        if len(self._marks) >= _MOST_MARKS - 1:
            self._marks = self._marks[1::2]
            self._step *= 2

    def marks(self) -> tuple[Mark, ...]:
        """Return all marks; the last one covers everything fed so far."""
        if not self.end or (self._marks and self._marks[-1].end == self.end):
            return tuple(self._marks)
        return (*self._marks, self._here())

    def _here(self) -> Mark:
        return Mark(self.end, self._hash.hexdigest())


def verified(
    file: BinaryIO, size: int, marks: Sequence[Mark], report: Callable[[int, int], None] = lambda done, total: None
) -> RollingHash:
    """Read the file's beginning again, up to the last mark, and return its rolling hash there.

    Raises:
        ConflictError: the bytes are not those that were published; the text names the difference.
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
                raise ConflictError(f"the file was truncated at byte {rolling.end} while it was read")
            rolling.feed(data)
            report(rolling.end, marks[-1].end)
        if rolling.marks()[-1].sha256 != mark.sha256:
            same = f"the same up to byte {before}" if before else "different from the beginning, or replaced"
            raise ConflictError(
                f"the file has changed between the bytes {before} and {mark.end}, which are published: it is {same}; "
                "restore the bytes that were published, or publish the new file under another producer name"
            )
    return rolling


# --- the document --------------------------------------------------------------------------------------------------


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
