"""Checkpoints as text, and files that differ from them."""

import hashlib
import json
import re
from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.publishing import checkpoint as module
from pulsar_sidecar.features.publishing.checkpoint import (
    NOTHING_SENT,
    Checkpoint,
    Mark,
    RollingHash,
    StoredPoint,
    checkpoint_of,
    verified,
)
from pulsar_sidecar.features.publishing.records import RecordFormat
from pulsar_sidecar.features.publishing.routing import HashingScheme
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position

positions = st.builds(Position, st.integers(0, 2**63 - 1).map(LedgerId), st.integers(0, 2**63 - 1).map(EntryId))
CHECKPOINT = Checkpoint(
    topic="persistent://a/b/c",
    producer_name="p",
    record_format=RecordFormat.LINES,
    hashing=HashingScheme.JAVA_STRING_HASH,
    is_partitioned=True,
    partitions=(StoredPoint(6, Position(LedgerId(7), EntryId(2))), StoredPoint(None, None)),
    records=3,
    marks=(Mark(9, "ab" * 32),),
)


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_STEP_BYTES", 4)
    monkeypatch.setattr(module, "_MOST_MARKS", 8)
    monkeypatch.setattr(module, "_READ_BYTES", 7)


@given(st.text(), st.lists(st.tuples(st.none() | st.integers(0, 99), st.none() | positions), min_size=1, max_size=4))
def test_a_checkpoint_is_read_as_written(name: str, points: list[tuple[int | None, Position | None]]) -> None:
    partitions = tuple(StoredPoint(*each) for each in points)
    marks = (Mark(9, "ab" * 32), Mark(100, "cd" * 32))
    written = replace(CHECKPOINT, producer_name=name, partitions=partitions, marks=marks)
    assert checkpoint_of(written.to_json()) == written
    assert written.end == 100


def test_before_anything_was_published() -> None:
    empty = replace(CHECKPOINT, marks=(), partitions=(StoredPoint(None, None),))
    assert (checkpoint_of(empty.to_json()), empty.end) == (empty, 0)


def test_an_empty_topic_and_an_unused_partition() -> None:
    empty = StoredPoint(None, Position(LedgerId(5), EntryId(-1)))
    written = replace(CHECKPOINT, partitions=(empty, NOTHING_SENT))
    assert checkpoint_of(written.to_json()) == written
    assert [*json.loads(written.to_json())["partitions"]] == [
        {"offset": None, "messageId": "5:-1"},
        {"offset": None, "messageId": None, "isSent": False},
    ]


def test_an_older_checkpoint_is_read() -> None:
    """Before checkpoints noted whether anything was sent: it may have been."""
    document = json.loads(CHECKPOINT.to_json())
    assert document["partitions"] == [{"offset": 6, "messageId": "7:2"}, {"offset": None, "messageId": None}]
    assert checkpoint_of(json.dumps(document)).partitions[1] == StoredPoint(None, None)


def test_people_can_read_it() -> None:
    assert CHECKPOINT.to_json().startswith('{\n  "version": 1,\n  "topic": "persistent://a/b/c",\n')


_UNFIT = "^it is damaged: its numbers are inconsistent$"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 2}, "^it has version 2; this program supports 1$"),
        ({"topic": 1}, r"^it is damaged \(Expected `str`, got `int` - at `\$\.topic`\)$"),
        ({"records": True}, r"Expected `int`, got `bool` - at `\$\.records`"),
        ({"isPartitioned": 1}, r"Expected `bool`, got `int` - at `\$\.isPartitioned`"),
        ({"format": "xml"}, "xml"),
        ({"partitions": []}, _UNFIT),
        ({"partitions": [{"offset": -1, "messageId": None}]}, r">= 0 - at `\$\.partitions\[0\]\.offset`"),
        ({"partitions": [{"offset": 2**63, "messageId": None}]}, r"at `\$\.partitions\[0\]\.offset`"),
        ({"partitions": [{"offset": 1, "messageId": "1"}]}, "matching regex"),
        ({"partitions": [{"offset": 1, "messageId": "-1:1"}]}, "matching regex"),
        ({"partitions": [{"offset": 1, "messageId": "1:-2"}]}, "matching regex"),
        ({"partitions": [{"offset": 1, "messageId": 7}]}, r"Expected `str \| null`, got `int`"),
        ({"published": [{"end": 9, "sha256": "a" * 64}, {"end": 9, "sha256": "b" * 64}]}, _UNFIT),
        ({"published": [{"end": 6, "sha256": "a" * 64}]}, _UNFIT),
        ({"partitions": [{"offset": 0, "messageId": "7:2"}], "published": []}, _UNFIT),
        ({"published": [{"end": 0, "sha256": "a" * 64}]}, r">= 1 - at `\$\.published\[0\]\.end`"),
        ({"published": [{"end": 9, "sha256": ""}]}, r"matching regex .* at `\$\.published\[0\]\.sha256`"),
    ],
)
def test_a_damaged_checkpoint_is_refused(change: dict[str, Any], reason: str) -> None:
    document = json.loads(CHECKPOINT.to_json()) | change
    with pytest.raises(InvalidInputError, match=reason):
        checkpoint_of(json.dumps(document))


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", CHECKPOINT.to_json()[:-20], "[" * 100_000])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="damaged"):
        checkpoint_of(text)


# --- the rolling hash ----------------------------------------------------------------------------------------------


def marked(pieces: list[bytes]) -> tuple[Mark, ...]:
    rolling = RollingHash()
    for piece in pieces:
        rolling.feed(piece)
        found = rolling.marks()
        assert len(found) <= 8
    return rolling.marks()


@pytest.mark.parametrize(
    ("fed", "ends"),
    [
        (3, (3,)),
        (27, (4, 8, 12, 16, 20, 24, 27)),
        (28, (8, 16, 24, 28)),
        (55, (8, 16, 24, 32, 40, 48, 55)),
        (56, (16, 32, 48, 56)),
    ],
)
def test_marks_are_kept_at_steps_that_double(fed: int, ends: tuple[int, ...]) -> None:
    assert tuple(mark.end for mark in marked([b"x"] * fed)) == ends


def test_progress_of_verification_is_reported() -> None:
    reported: list[tuple[int, int]] = []
    verified(BytesIO(b"0123456789"), 10, marked([b"0123456789"]), lambda done, total: reported.append((done, total)))
    assert reported == [(7, 10), (10, 10)]


pieces = st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=60)


@given(pieces)
def test_marks_are_sums_of_the_beginning(fed: list[bytes]) -> None:
    data = b"".join(fed)
    marks = marked(fed)
    assert [mark.sha256 for mark in marks] == [hashlib.sha256(data[: mark.end]).hexdigest() for mark in marks]
    assert marks[-1].end == len(data)
    rolling = verified(BytesIO(data + b"more"), len(data) + 4, marks)
    assert (rolling.end, rolling.marks()[-1]) == (len(data), marks[-1])


@given(pieces, pieces)
def test_a_verified_hash_continues_like_an_uninterrupted_one(fed: list[bytes], more: list[bytes]) -> None:
    rolling = verified(BytesIO(b"".join(fed)), sum(map(len, fed)), marked(fed))
    for piece in more:
        rolling.feed(piece)
    assert rolling.marks()[-1].sha256 == hashlib.sha256(b"".join([*fed, *more])).hexdigest()


@given(pieces, st.data())
def test_a_changed_byte_lies_within_the_named_range(fed: list[bytes], choice: st.DataObject) -> None:
    data = bytearray(b"".join(fed))
    marks = marked(fed)
    at = choice.draw(st.integers(0, len(data) - 1))
    data[at] ^= 1
    with pytest.raises(ConflictError) as raised:
        verified(BytesIO(bytes(data)), len(data), marks)
    found = re.search(r"between the bytes (\d+) and (\d+),", str(raised.value))
    assert found is not None
    before, behind = (int(number) for number in found.groups())
    assert before <= at < behind
    assert ("replaced" in str(raised.value)) == (before == 0)


def test_a_shrunk_file() -> None:
    marks = marked([b"0123456789"])
    with pytest.raises(ConflictError, match="9 bytes long, and 10 bytes of it had been published"):
        verified(BytesIO(b"012345678"), 9, marks)
    with pytest.raises(ConflictError, match="truncated at byte 9"):
        verified(BytesIO(b"012345678"), 10, marks)
    assert verified(BytesIO(b""), 0, ()).end == 0
