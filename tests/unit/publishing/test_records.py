"""Files divided into records, whatever they hold and wherever reading begins."""

import json
from base64 import b64encode
from collections.abc import Mapping
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.publishing import records as module
from pulsar_sidecar.features.publishing.records import FileRecord, RecordFormat, RecordReader
from pulsar_sidecar.model.errors import InvalidInputError

LINES, JSON_LINES, LENGTH_PREFIXED = RecordFormat
MOST_BYTES = 128


@pytest.fixture(autouse=True)
def _short_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RECORD_BYTES", MOST_BYTES)


def reader_of(data: bytes, form: RecordFormat, *, is_complete: bool = False) -> RecordReader:
    return RecordReader(BytesIO(data), form, len(data), is_complete=is_complete)


def read(data: bytes, form: RecordFormat = LINES) -> list[FileRecord]:
    return list(reader_of(data, form).records())


def prefixed(*payloads: bytes) -> bytes:
    return b"".join(len(payload).to_bytes(4, "big") + payload for payload in payloads)


def lines(*payloads: bytes) -> bytes:
    return b"".join(payload + b"\n" for payload in payloads)


def json_lines(*documents: object) -> bytes:
    return lines(*(json.dumps(document).encode() for document in documents))


def test_lines_are_payloads_as_they_stand() -> None:
    assert [(each.offset, each.end, each.payload) for each in read(b"a\n\n b \r\n\xff\n")] == [
        (0, 2, b"a"),
        (2, 3, b""),
        (3, 8, b" b \r"),
        (8, 10, b"\xff"),
    ]


def test_lines_of_json() -> None:
    whole = {"payload": "ä", "key": "k", "properties": {"p": "1"}, "eventTime": 1732406400000}
    data = json_lines(whole, {"payloadBase64": b64encode(b"\0\xff").decode()})
    one, other = read(data, JSON_LINES)
    assert one == FileRecord(0, other.offset, "ä".encode(), "k", {"p": "1"}, 1732406400000)
    assert other == FileRecord(one.end, len(data), b"\0\xff")


@given(st.lists(st.binary(max_size=MOST_BYTES - 4), max_size=8), st.sampled_from([LINES, LENGTH_PREFIXED]), st.data())
def test_records_are_the_same_wherever_reading_begins(
    payloads: list[bytes], form: RecordFormat, choice: st.DataObject
) -> None:
    payloads = [payload.replace(b"\n", b" ") for payload in payloads]
    data = lines(*payloads) if form is LINES else prefixed(*payloads)
    found = read(data, form)
    assert [each.payload for each in found] == payloads
    assert [each.end for each in found] == [*(each.offset for each in found[1:]), *([len(data)] if found else [])]
    start = choice.draw(st.sampled_from([0, *(each.end for each in found)]))
    assert list(reader_of(data, form).records(start)) == [each for each in found if each.offset >= start]


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=5), st.sampled_from([LINES, LENGTH_PREFIXED]), st.data())
def test_an_unfinished_record_is_left(payloads: list[bytes], form: RecordFormat, choice: st.DataObject) -> None:
    payloads = [payload.replace(b"\n", b" ") for payload in payloads]
    data = lines(*payloads) if form is LINES else prefixed(*payloads)
    whole = read(data, form)
    cut = choice.draw(st.integers(0, len(data)))
    fed: list[bytes] = []
    reader = RecordReader(BytesIO(data), form, cut, feed=fed.append)
    found = list(reader.records())
    assert found == [each for each in whole if each.end <= cut]
    end = found[-1].end if found else 0
    assert reader.unfinished_at == (None if end == cut else end)
    assert b"".join(fed) == data[:end]
    # Later the rest is there, and nothing was taken in halves.
    assert found + list(reader_of(data, form).records(end)) == whole


def test_the_last_line_of_a_complete_file_needs_no_newline() -> None:
    reader = reader_of(b"a\nb", LINES, is_complete=True)
    assert [each.payload for each in reader.records()] == [b"a", b"b"]
    assert reader.unfinished_at is None
    reader = reader_of(prefixed(b"abc")[:-1], LENGTH_PREFIXED, is_complete=True)
    assert not list(reader.records())
    assert reader.unfinished_at == 0


@pytest.mark.parametrize(
    ("data", "end", "begins"), [(b"a\nb", 3, 3), (b"a\nb\nc\n", 3, 4), (b"a\nb\nc\n", 4, 4), (b"a\n", 0, 0)]
)
def test_after_finds_the_next_line(data: bytes, end: int, begins: int) -> None:
    fed: list[bytes] = []
    reader = RecordReader(BytesIO(data), LINES, len(data), feed=fed.append)
    assert reader.after(end) == begins
    assert b"".join(fed) == data[end:begins]


def test_a_published_last_line_cannot_go_on() -> None:
    with pytest.raises(InvalidInputError, match="byte 3"):
        reader_of(b"a\nbc\n", LINES).after(3)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "Expecting value"),
        (b"[1]", "Expected `object`, got `array`"),
        (b'{"payload": "a", "payload": "b"}', "twice"),
        (b'{"payload": 1}', "Expected `str | null`, got `int` - at `$.payload`"),
        (b'{"payload": "a", "payloadBase64": ""}', "either"),
        (b'{"key": "a"}', "either"),
        (b'{"payloadBase64": "a"}', "base64"),
        (b'{"payloadBase64": "*"}', "base64"),
        (b'{"payload": "a", "Key": "k"}', "'Key' is not a field"),
        (b'{"payload": "a", "key": 3}', "got `int` - at `$.key`"),
        (b'{"payload": "a", "properties": []}', "got `array` - at `$.properties`"),
        (b'{"payload": "a", "properties": {"b": 1}}', "got `int` - at `$.properties[...]`"),
        (b'{"payload": "a", "eventTime": 1.5}', "eventTime"),
        (b'{"payload": "a", "eventTime": true}', "eventTime"),
        (b'{"payload": "a", "eventTime": 9223372036854775808}', "eventTime"),
        (b'{"payload": "a", "eventTime": 0}', "eventTime"),
        (b'{"payload": "\\ud800"}', "surrogates"),
        (b'{"payload": "a", "key": "\\ud800"}', "surrogates"),
        (b'{"payload": "a", "properties": {"\\ud800": "b"}}', "surrogates"),
        (b'{"payload": "a", "properties": {"b": "\\ud800"}}', "surrogates"),
        (b'{"payload": "\xff"}', "utf-8"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b"[" * 40, "Expecting"),
    ],
)
def test_a_malformed_record_is_named_by_its_byte(line: bytes, reason: str) -> None:
    good = json_lines({"payload": "a"})
    with pytest.raises(InvalidInputError, match=f"byte {len(good)} ") as raised:
        read(good + line + b"\n", JSON_LINES)
    assert reason.lower() in str(raised.value).lower()


@pytest.mark.parametrize("form", RecordFormat)
def test_a_too_long_record_ends_the_reading_early(form: RecordFormat) -> None:
    data = prefixed(b"a" * MOST_BYTES) if form is LENGTH_PREFIXED else b'"' + b"a" * 3 * MOST_BYTES
    with pytest.raises(InvalidInputError, match=f"byte 0 is longer than {MOST_BYTES} bytes"):
        read(data, form)


def test_file_truncated_during_the_read_is_refused() -> None:
    for form, data in ((LINES, b"abc"), (LENGTH_PREFIXED, prefixed(b"abc")[:-1])):
        reader = RecordReader(BytesIO(data), form, len(data) + 9, is_complete=True)
        with pytest.raises(InvalidInputError, match="truncated"):
            list(reader.records())


def test_fields_may_be_null() -> None:
    document: Mapping[str, object] = {"payload": "a", "key": None, "properties": None, "eventTime": None}
    assert read(json_lines(document), JSON_LINES)[0].key is None
