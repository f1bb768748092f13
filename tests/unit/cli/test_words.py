"""Words, times and sizes in tables; and the form of each field of the REST reference."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pulsar_sidecar.cli.words import (
    LENGTHS_OF_TIME,
    iso_time,
    length_of_time,
    parse_time,
    reading,
    with_readable_texts,
    words,
)
from pulsar_sidecar.model.errors import InvalidInputError

OPENAPI = Path(__file__).parents[3] / "docs" / "reference" / "openapi.json"


def fields() -> Iterator[tuple[str, str]]:
    for schema in json.loads(OPENAPI.read_text())["components"]["schemas"].values():
        for name, field in schema.get("properties", {}).items():
            yield name, field.get("description", "")


def test_a_length_of_time_is_not_written_as_a_time() -> None:
    assert {name for name, _ in fields()} >= LENGTHS_OF_TIME
    for name, description in fields():
        if name.endswith("Ms") and re.search(r"\b(age|percentile|duration|longest)\b", description, re.IGNORECASE):
            assert name in LENGTHS_OF_TIME, f"{name}: {description}"


def test_words_contain_no_json_spelling() -> None:
    for name, _ in fields():
        assert not re.search("[a-z][A-Z]|Ms$", words(name)), name


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("ageMs", 120, "120 ms"),
        ("oldestAgeMs", 7_200_000, "2 hours"),
        ("idleP99Ms", 1.23456, "1.23 ms"),
        ("requestedMs", 1_700_000_000_000, "2023-11-14T22:13:20Z"),
        ("deliverAt", 1_700_000_000_001, "2023-11-14T22:13:20.001Z"),
        ("sizeBytes", 1536, "1.5 KiB"),
        ("lagSeconds", 0.25, "250 ms"),
        ("ledgersPerSecond", 5, None),
        ("ledgerId", 5, None),
        ("ageMs", None, None),
        ("requestedMs", True, None),
        ("lastDueMs", 2**63 - 1, f"{2**63 - 1} ms"),
    ],
)
def test_readings(name: str, value: object, text: str | None) -> None:
    assert reading(name, value) == text


def test_json_has_both_and_keeps_what_is_there() -> None:
    document = {
        "sinceMs": 0,
        "sizeBytes": 1,
        "size": "mine",
        "now": 5,
        "record": {"createdMs": 7},
        "list": [{"dueMs": 1}],
    }
    assert with_readable_texts(document) == {
        "sinceMs": 0,
        "since": "1970-01-01T00:00:00Z",
        "sizeBytes": 1,
        "size": "mine",
        "now": 5,
        "nowTime": "1970-01-01T00:00:00.005Z",
        "record": {"createdMs": 7},
        "list": [{"dueMs": 1, "due": "1970-01-01T00:00:00.001Z"}],
    }


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1795269995318", 1_795_269_995_318),
        ("0", 0),
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01T01:00:00.250+01:00", 250),
        ("1970-01-01 00:00:01+00:00", 1000),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
    ],
)
def test_times_that_are_understood(text: str, milliseconds: int) -> None:
    assert parse_time(text) == milliseconds
    assert parse_time(iso_time(milliseconds)) == milliseconds


@pytest.mark.parametrize(
    "text",
    ["", "-5", "1969-12-31T00:00Z", "soon", "2026-12-24", "2026-12-24T18:00:00", "1e3", "0x10", "9" * 20, "\x00", "-"],
)
def test_times_that_are_not(text: str) -> None:
    with pytest.raises(InvalidInputError, match="ISO 8601"):
        parse_time(text)


def test_lengths_of_time_for_people() -> None:
    assert [length_of_time(each) for each in (0, 999, 1000, 90_000)] == ["0 ms", "999 ms", "1 second", "1 minute"]
