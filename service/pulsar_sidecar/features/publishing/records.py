"""Records of a file, each with the byte at which it begins: the sequence id under which it is published.

Three formats: lines (the payload is the line without its newline, a carriage return included), lines of JSON, and
payloads each behind its length. One record is in memory at a time.

Invariants: the same bytes give the same records, wherever reading begins; a record that the file does not contain
completely is not a record. A last line without a newline may be half of a line that is still being written, and once
published it could never be completed, for its sequence id would be used up: it counts only in a file that is declared
complete. Bytes that are appended while a file is read are left for the next run.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from typing import Annotated, Any, BinaryIO, Final, assert_never

import msgspec

from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.reports.formatting import format_count

MAX_RECORD_BYTES: Final = 64 * 1024 * 1024
"""Largest size of a record with its framing; a longer one is more likely a wrong format than a message."""

_LENGTH_BYTES: Final = 4
_NEWLINE: Final = b"\n"
_FIELDS: Final = frozenset({"payload", "payloadBase64", "key", "properties", "eventTime"})


class RecordFormat(Enum):
    """Format that divides a file into records."""

    LINES = "lines"
    JSON_LINES = "json-lines"
    LENGTH_PREFIXED = "length-prefixed"


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Record whose bytes are those from ``offset`` up to, but not including, ``end``."""

    offset: int
    end: int
    payload: bytes
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    event_time_ms: int | None = None


@dataclass(slots=True)
class RecordReader:
    """Reader of records up to ``size`` bytes, the file's size when it was opened.

    Attributes:
        is_complete: True if nothing will be appended.
        feed: function that takes the bytes of each record first.
        unfinished_at: byte at which an incomplete last record begins, after reading; None if there is none.
    """

    file: BinaryIO
    form: RecordFormat
    size: int
    _: KW_ONLY
    is_complete: bool = False
    feed: Callable[[bytes], None] = lambda data: None
    unfinished_at: int | None = field(default=None, init=False)

    def records(self, start: int = 0) -> Iterator[FileRecord]:
        """Yield every record from ``start`` on, where a record must begin.

        Raises:
            InvalidInputError: a record is not of the format; the text names the byte at which it begins.
            OSError: the file cannot be read.
        """
        self.unfinished_at = None
        match self.form:
            case RecordFormat.LINES:
                return self._lines(start, lambda offset, line, payload: FileRecord(offset, offset + len(line), payload))
            case RecordFormat.JSON_LINES:
                return self._lines(start, _of_json)
            case RecordFormat.LENGTH_PREFIXED:
                return self._length_prefixed(start)
            case never:
                assert_never(never)

    def after(self, end: int) -> int:
        """Return the byte at which the record begins that follows the one which ended at ``end``.

        A last line that was published without its newline may have got one since.

        Raises:
            InvalidInputError: that line has been continued instead.
        """
        if end == 0 or end >= self.size or self.form is RecordFormat.LENGTH_PREFIXED:
            return end
        self.file.seek(end - 1)
        before, behind = self.file.read(1), self.file.read(1)
        if before == _NEWLINE:
            return end
        if behind != _NEWLINE:
            raise InvalidInputError(
                f"the file was published as complete up to byte {end}, and its last line continues there now; what was "
                "published cannot be extended"
            )
        self.feed(_NEWLINE)
        return end + 1

    def _lines(self, start: int, record_of: "Callable[[int, bytes, bytes], FileRecord]") -> Iterator[FileRecord]:
        self.file.seek(start)
        offset, read, feed = start, self.file.readline, self.feed
        while offset < self.size:
            line = read(min(MAX_RECORD_BYTES + 1, self.size - offset))
            if line.endswith(_NEWLINE):
                payload = line[:-1]
            elif offset + len(line) < self.size:
                self._check_length(offset, len(line))
                raise InvalidInputError(f"the file was truncated at byte {offset + len(line)} while it was read")
            elif self.is_complete:
                payload = line
            else:
                self.unfinished_at = offset
                return
            self._check_length(offset, len(line))
            record = record_of(offset, line, payload)
            feed(line)
            yield record
            offset = record.end

    def _length_prefixed(self, start: int) -> Iterator[FileRecord]:
        self.file.seek(start)
        offset = start
        while offset < self.size:
            prefix = self.file.read(_LENGTH_BYTES)
            length = int.from_bytes(prefix, "big")
            end = offset + _LENGTH_BYTES + length
            if len(prefix) == _LENGTH_BYTES:
                self._check_length(offset, _LENGTH_BYTES + length)
            if len(prefix) < _LENGTH_BYTES or end > self.size:
                self.unfinished_at = offset
                return
            payload = self.file.read(length)
            if len(payload) < length:
                raise InvalidInputError(f"the file was truncated in the record at byte {offset} while it was read")
            self.feed(prefix + payload)
            yield FileRecord(offset, end, payload)
            offset = end

    def _check_length(self, offset: int, length: int) -> None:
        if length > MAX_RECORD_BYTES:
            raise InvalidInputError(
                f"the record at byte {offset} is longer than {format_count(MAX_RECORD_BYTES, 'byte')}; is this a file "
                f"of {self.form.value}?"
            )


# --- lines of JSON -------------------------------------------------------------------------------------------------


@decodable
class _JsonRecord(msgspec.Struct, rename="camel"):
    payload: str | None = None
    payload_base64: bytes | None = None
    key: str | None = None
    properties: dict[str, str] | None = None
    event_time: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)] | None = None


def _of_json(offset: int, line: bytes, text: bytes) -> FileRecord:
    try:
        record = msgspec.convert(
            _checked_fields(json.loads(text.decode(), object_pairs_hook=_without_duplicates)), _JsonRecord
        )
        payload, properties = _payload(record), record.properties or {}
        for each in (record.key or "", *properties, *properties.values()):
            each.encode()  # a lone surrogate has no bytes
        return FileRecord(offset, offset + len(line), payload, record.key, properties, record.event_time)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"the record at byte {offset} cannot be published: {error}") from error


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError("a field occurs twice")
    return document


def _checked_fields(document: object) -> object:
    if isinstance(document, dict) and (unknown := document.keys() - _FIELDS):
        raise ValueError(f"{min(unknown)!r} is not a field; the fields are {', '.join(sorted(_FIELDS))}")
    return document


def _payload(record: _JsonRecord) -> bytes:
    payload = record.payload_base64 if record.payload is None else record.payload.encode()
    if payload is None or None not in (record.payload, record.payload_base64):
        raise ValueError("it needs either payload (text) or payloadBase64")
    return payload
