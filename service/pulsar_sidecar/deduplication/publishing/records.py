"""A file's records, each with the byte at which it begins: the sequence id under which it is published.

Three formats: lines (the payload is the line without its newline, a carriage return included), lines of JSON, and
payloads each behind its length. One record is in memory at a time.

Invariants: the same bytes give the same records, wherever reading begins; a record that the file does not hold to its
end is not a record. A last line without a newline may be half of a line that is still being written, and published it
could never be completed, for its sequence id would be used up: it counts only in a file that is declared complete.
What is appended while a file is read is left for the next time.
"""

import json
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, BinaryIO, Final, assert_never

from pulsar_sidecar.model.errors import InvalidInputError

MAX_RECORD_BYTES: Final = 64 * 1024 * 1024
"""Of one record with its framing; a longer one is more likely a wrong format than a message."""

_LENGTH_BYTES: Final = 4
_NEWLINE: Final = b"\n"
_MAX_TIME_MS: Final = 2**63 - 1
_FIELDS: Final = frozenset({"payload", "payloadBase64", "key", "properties", "eventTime"})


class RecordFormat(Enum):
    """How a file is divided into records."""

    LINES = "lines"
    JSON_LINES = "json-lines"
    LENGTH_PREFIXED = "length-prefixed"


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One record: its bytes are those from ``offset`` up to ``end``, without the latter."""

    offset: int
    end: int
    payload: bytes
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    event_time_ms: int | None = None


class RecordReader:
    """Reads records up to ``size`` bytes, what the file held when it was opened.

    Attributes:
        unfinished_at: after reading, the byte at which a last record begins that the file does not hold to its end;
            None where there is none.
    """

    def __init__(
        self,
        file: BinaryIO,
        form: RecordFormat,
        size: int,
        *,
        is_complete: bool = False,
        feed: Callable[[bytes], None] = lambda data: None,
        most_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        """``is_complete`` declares that nothing will be appended; ``feed`` gets the bytes of each record first."""
        self._file = file
        self._form = form
        self._size = size
        self._is_complete = is_complete
        self._feed = feed
        self._most_bytes = most_bytes
        self.unfinished_at: int | None = None

    def records(self, start: int = 0) -> Iterator[FileRecord]:
        """Every record from ``start`` on, where a record has to begin.

        Raises:
            InvalidInputError: a record is not of the format; the text names the byte at which it begins.
            OSError: the file cannot be read.
        """
        self.unfinished_at = None
        match self._form:
            case RecordFormat.LINES:
                return self._lines(start, lambda offset, line, payload: FileRecord(offset, offset + len(line), payload))
            case RecordFormat.JSON_LINES:
                return self._lines(start, _of_json)
            case RecordFormat.LENGTH_PREFIXED:
                return self._length_prefixed(start)
            case never:
                assert_never(never)

    def after(self, end: int) -> int:
        """Where the record begins that follows the one which ended at ``end``.

        A last line that was published without its newline may have got one since.

        Raises:
            InvalidInputError: that line has been continued instead.
        """
        if end == 0 or end >= self._size or self._form is RecordFormat.LENGTH_PREFIXED:
            return end
        self._file.seek(end - 1)
        before, behind = self._file.read(1), self._file.read(1)
        if before == _NEWLINE:
            return end
        if behind != _NEWLINE:
            raise InvalidInputError(
                f"the file was published as complete up to byte {end}, and its last line continues there now; what was "
                "published cannot be extended"
            )
        self._feed(_NEWLINE)
        return end + 1

    def _lines(self, start: int, record_of: "Callable[[int, bytes, bytes], FileRecord]") -> Iterator[FileRecord]:
        self._file.seek(start)
        offset, read, feed = start, self._file.readline, self._feed
        while offset < self._size:
            line = read(min(self._most_bytes + 1, self._size - offset))
            if line.endswith(_NEWLINE):
                payload = line[:-1]
            elif offset + len(line) < self._size:
                self._check_length(offset, len(line))
                raise InvalidInputError(f"the file was cut off at byte {offset + len(line)} while it was read")
            elif self._is_complete:
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
        self._file.seek(start)
        offset = start
        while offset < self._size:
            prefix = self._file.read(_LENGTH_BYTES)
            length = int.from_bytes(prefix, "big")
            end = offset + _LENGTH_BYTES + length
            if len(prefix) == _LENGTH_BYTES:
                self._check_length(offset, _LENGTH_BYTES + length)
            if len(prefix) < _LENGTH_BYTES or end > self._size:
                self.unfinished_at = offset
                return
            payload = self._file.read(length)
            if len(payload) < length:
                raise InvalidInputError(f"the file was cut off in the record at byte {offset} while it was read")
            self._feed(prefix + payload)
            yield FileRecord(offset, end, payload)
            offset = end

    def _check_length(self, offset: int, length: int) -> None:
        if length > self._most_bytes:
            raise InvalidInputError(
                f"the record at byte {offset} is longer than {self._most_bytes} bytes; is this a file of "
                f"{self._form.value}?"
            )


# --- lines of JSON -------------------------------------------------------------------------------------------------


def _of_json(offset: int, line: bytes, text: bytes) -> FileRecord:
    try:
        document = _checked_document(json.loads(text.decode(), object_pairs_hook=_without_twins))
        return FileRecord(
            offset,
            offset + len(line),
            _payload(document),
            _text(document, "key"),
            _properties(document),
            _event_time(document),
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"the record at byte {offset} cannot be published: {error}") from error


def _checked_document(document: object) -> Mapping[str, Any]:
    if not isinstance(document, dict):
        raise TypeError("it is not an object")
    if unknown := document.keys() - _FIELDS:
        raise ValueError(f"{min(unknown)!r} is not a field; there are {', '.join(sorted(_FIELDS))}")
    return document


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError("a field is there twice")
    return document


def _payload(document: Mapping[str, Any]) -> bytes:
    text, encoded = _text(document, "payload"), _text(document, "payloadBase64")
    if (text is None) == (encoded is None):
        raise ValueError("it needs either payload, a text, or payloadBase64")
    return text.encode() if text is not None else b64decode(str(encoded), validate=True)


def _text(document: Mapping[str, Any], name: str) -> str | None:
    value = document.get(name)
    if value is None:
        return None
    return _checked(name, value)


def _checked(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is not a text")
    value.encode()  # a lone surrogate has no bytes
    return value


def _properties(document: Mapping[str, Any]) -> Mapping[str, str]:
    value = document.get("properties")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise TypeError("properties is not an object of texts")
    return {_checked("a property's name", name): _checked(f"property {name!r}", text) for name, text in value.items()}


def _event_time(document: Mapping[str, Any]) -> int | None:
    value = document.get("eventTime")
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _MAX_TIME_MS:
        raise ValueError("eventTime is not a number of milliseconds since 1970")
    return value
