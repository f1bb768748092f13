"""Resume points for every combination of responses from broker, checkpoint and topic."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.publishing.checkpoint import NOTHING_SENT, SENT_BEFORE, StoredPoint
from pulsar_sidecar.features.publishing.records import FileRecord
from pulsar_sidecar.features.publishing.resume import (
    ResumePoint,
    StoredRecord,
    Tail,
    check_against_file,
    read_back_from,
    resume_point,
)
from pulsar_sidecar.model.errors import ConflictError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.payloads import payload_hash

LEDGER = 5
SIZE = 10
"""Of each record, so the one of number n begins at the byte 10 n."""


def at(entry_id: int, ledger_id: int = LEDGER) -> Position:
    return Position(LedgerId(ledger_id), EntryId(entry_id))


EMPTY = StoredPoint(None, at(-1))


def record(number: int, payload: bytes = b"") -> FileRecord:
    return FileRecord(number * SIZE, number * SIZE + SIZE, payload or str(number).encode())


def stored(number: int, entry: int) -> StoredRecord:
    return StoredRecord(number * SIZE, at(entry), payload_hash(record(number).payload))


def tail_of(numbers: Sequence[int], first: int | None = 0) -> Tail:
    """The records of these numbers, each in the entry of its own number."""
    return Tail(tuple(stored(number, number) for number in numbers), None if first is None else at(first))


def resumed(pushed: int, point: StoredPoint | None, tail: Tail) -> ResumePoint:
    is_needed, _ = read_back_from(pushed, point)
    return resume_point(pushed, point, tail if is_needed else None)


# --- every history -------------------------------------------------------------------------------------------------


@given(st.data())
def test_no_history_loses_or_repeats_a_record(choice: st.DataObject) -> None:
    """A history of one partition: records stored up to one, some on their way, the checkpoint anywhere before.

    The broker remembers, or has forgotten; the topic is trimmed anywhere, or was made again.
    """
    last_stored = choice.draw(st.integers(-1, 6), "last stored")
    known = choice.draw(st.none() | st.integers(-1, last_stored), "checkpoint")
    trimmed = choice.draw(st.integers(0, last_stored + 1), "first entry that is left")
    is_rolled = choice.draw(st.booleans(), "others publish to a later ledger")
    forgotten = choice.draw(st.booleans(), "forgotten")
    asked = max(known or 0, 0)
    # A broker forgets a producer wholly; a lower answer than that is believed where nothing is left to compare with.
    least = last_stored if trimmed <= asked else -1 if known is None else known
    answers = st.integers(-1, least).filter(lambda number: number < 0 or number != known or known == last_stored)
    pushed = choice.draw(answers if forgotten else st.integers(last_stored, 8), "pushed")
    point = None if known is None else StoredPoint(known * SIZE, at(known)) if known >= 0 else EMPTY
    if known is None and last_stored >= 0 and choice.draw(st.booleans(), "seen without a checkpoint"):
        point = SENT_BEFORE
    first = max(asked, trimmed)
    tail = tail_of(range(first, last_stored + 1), first)
    if first > last_stored:
        is_emptied = trimmed > 0 or is_rolled
        tail = Tail((), at(0 if is_rolled else -1, LEDGER + is_emptied))
    pushed_id = pushed * SIZE if pushed >= 0 else -1
    try:
        found = resumed(pushed_id, point, tail)
        check_against_file([found], 0, ((record(number), 0) for number in range(20)))
    except ConflictError:
        nothing_shows = last_stored < 0 and (known is None or is_rolled)
        assert trimmed > asked or nothing_shows, "refused only where something is gone, or has not come yet"
        return
    sent = [offset for offset in range(0, 20 * SIZE, SIZE) if offset > found.after]
    for offset in sent:
        is_stored, is_known = offset <= last_stored * SIZE, offset <= pushed_id
        if forgotten and point is None and not tail.records:
            assert found.is_blank
            return  # As a first run: nothing is left anywhere that could show it.
        assert is_known or not is_stored, "what a broker has forgotten would be stored again"
    if found.is_last_remembered:
        assert found.after <= min(pushed_id, last_stored * SIZE), "it has to be a duplicate"
    assert set(range((last_stored + 1) * SIZE, 20 * SIZE, SIZE)) <= set(sent), "nothing is left out"


# --- one by one ----------------------------------------------------------------------------------------------------

C3 = StoredPoint(3 * SIZE, at(3))
AT_30 = "the record at byte 30"
WAY_OUT = "if it was nothing, delete the checkpoint and repeat the command; otherwise publish under another"
NOTHING_LEFT = (
    "no longer holds any of the producer's messages: .* Restore the checkpoint, or publish under another producer name"
)


def test_agreeing_broker_and_checkpoint_need_no_read() -> None:
    assert read_back_from(30, C3) == (False, at(3))
    assert resume_point(30, C3, None) == ResumePoint(30, pushed=30, stored={}, whole_from=30)
    for pushed, point in ((40, C3), (20, C3), (-1, C3), (-1, None), (30, None), (-1, StoredPoint(None, at(3)))):
        assert read_back_from(pushed, point) == (True, point.position if point else None)
    for point in (EMPTY, SENT_BEFORE):
        assert read_back_from(-1, point) == (True, None)


def test_unused_producer_needs_no_read() -> None:
    assert read_back_from(-1, NOTHING_SENT) == (False, None)
    assert resume_point(-1, NOTHING_SENT, None) == ResumePoint(-1, pushed=-1, stored={}, whole_from=-1)
    assert read_back_from(30, NOTHING_SENT) == (True, None), "the checkpoint is an older one"
    assert resume_point(30, NOTHING_SENT, tail_of([1, 2, 3], 1)).after == 30


@pytest.mark.parametrize(
    ("pushed", "point", "tail", "after", "resends", "whole_from"),
    [
        pytest.param(-1, None, tail_of([], None), -1, False, -1, id="a first time"),
        pytest.param(-1, None, tail_of([0, 1, 2]), 20, False, 0, id="the broker forgot a lost checkpoint's records"),
        pytest.param(20, None, tail_of([1, 2], 1), 20, True, 10, id="a lost checkpoint, an older part is trimmed"),
        pytest.param(40, None, tail_of([1, 2], 1), 20, True, 10, id="a lost checkpoint, some are on their way"),
        pytest.param(50, C3, tail_of([3, 4, 5], 3), 50, True, 30, id="stored since the checkpoint"),
        pytest.param(70, C3, tail_of([3, 4, 5], 3), 50, True, 30, id="on their way"),
        pytest.param(70, C3, tail_of([3], 3), 30, True, 30, id="all that came is on its way"),
        pytest.param(
            50, C3, tail_of([5], 5), 50, True, 50, id="the broker knows it, the checkpoint's entry is trimmed"
        ),
        pytest.param(-1, C3, tail_of([3], 3), 30, False, 30, id="forgotten"),
        pytest.param(-1, C3, tail_of([3, 4], 3), 40, False, 30, id="forgotten, more than the checkpoint"),
        pytest.param(10, C3, tail_of([3, 4], 3), 40, False, 30, id="half forgotten"),
        pytest.param(-1, EMPTY, tail_of([0, 1]), 10, False, -1, id="forgotten before a first record"),
        pytest.param(-1, EMPTY, tail_of([], -1), -1, False, -1, id="nothing came yet"),
        pytest.param(-1, EMPTY, tail_of([], 0), -1, False, -1, id="others published the first entry"),
        pytest.param(30, SENT_BEFORE, tail_of([2, 3], 2), 30, True, 20, id="the broker knows it, the checkpoint not"),
        pytest.param(-1, SENT_BEFORE, tail_of([2, 3], 2), 30, False, 20, id="forgotten, and the checkpoint knows none"),
        pytest.param(-1, StoredPoint(None, at(8)), tail_of([], 8), -1, False, -1, id="only others published"),
    ],
)
def test_resume_points(
    pushed: int, point: StoredPoint | None, tail: Tail, after: int, whole_from: int, *, resends: bool
) -> None:
    found = resumed(pushed, point, tail)
    remembered = found.is_last_remembered
    assert (found.after, remembered, found.pushed, found.whole_from) == (after, resends, pushed, whole_from)
    known = -1 if point is None or point.offset is None else point.offset
    assert found.stored == {each.offset: each for each in tail.records if each.offset > known}


def test_a_partition_is_blank_only_where_no_source_shows_the_producer() -> None:
    assert resumed(-1, None, tail_of([], None)).is_blank
    assert not resumed(-1, None, tail_of([1, 2], 1)).is_blank, "the topic shows something"
    assert not resumed(20, None, tail_of([1, 2], 1)).is_blank
    assert not resumed(-1, EMPTY, tail_of([], -1)).is_blank, "there is a checkpoint"


@pytest.mark.parametrize(
    ("pushed", "point", "tail", "reason"),
    [
        pytest.param(
            -1,
            C3,
            tail_of([], None),
            f"reports nothing for .* the checkpoint {AT_30}, .* holds the entry 5:3",
            id="trimmed",
        ),
        pytest.param(
            20,
            C3,
            tail_of([4], 4),
            "reports the record at byte 20 .* holds the entry 5:3",
            id="trimmed, others are left",
        ),
        pytest.param(
            -1,
            StoredPoint(None, at(8)),
            tail_of([], 9),
            "the checkpoint nothing, .*no longer holds",
            id="trimmed before a record",
        ),
        pytest.param(-1, EMPTY, tail_of([1], 1), "no longer holds the entry 5:-1", id="only its first entry is gone"),
        pytest.param(-1, EMPTY, tail_of([7], 7), f"no longer holds .* {WAY_OUT}", id="its beginning is gone"),
        pytest.param(-1, EMPTY, Tail((), at(0, 6)), "no longer holds the entry 5:-1", id="emptied, others are left"),
        pytest.param(-1, EMPTY, Tail((), at(-1, 6)), "no longer holds", id="emptied, or made again"),
        pytest.param(-1, EMPTY, Tail((), None), "no longer holds", id="it ends before its beginning"),
        pytest.param(
            -1, SENT_BEFORE, tail_of([], 7), f"reports nothing .*no checkpoint names.*{NOTHING_LEFT}", id="all is gone"
        ),
        pytest.param(-1, C3, tail_of([2, 4], 3), "another message", id="made again"),
        pytest.param(-1, C3, Tail((stored(3, 4),), at(3)), "another message", id="the record is elsewhere"),
        pytest.param(-1, C3, Tail((stored(4, 3),), at(3)), "another message", id="another record is there"),
        pytest.param(50, C3, tail_of([], 3), "another message", id="another topic"),
        pytest.param(
            20,
            None,
            tail_of([], 3),
            f"reports the record at byte 20 .*no checkpoint.*{NOTHING_LEFT}",
            id="nothing to compare with",
        ),
    ],
)
def test_refusals(pushed: int, point: StoredPoint | None, tail: Tail, reason: str) -> None:
    with pytest.raises(ConflictError, match=reason):
        resumed(pushed, point, tail)


def test_a_topic_with_duplicates_is_refused() -> None:
    twice = Tail((stored(3, 3), stored(4, 4), stored(4, 5)), at(3))
    with pytest.raises(ConflictError, match="sequence id 40 of this producer at 5:5, after 40 at 5:4"):
        resumed(-1, C3, twice)


@pytest.mark.parametrize("point", [None, C3, SENT_BEFORE])
def test_half_a_record_is_not_taken_for_the_whole(point: StoredPoint | None) -> None:
    """A last chunk without the others; the first record's may lie before what was read."""
    half = StoredRecord(40, at(4), None)
    with pytest.raises(ConflictError, match="does not hold the whole record at byte 40, only what is at 5:4"):
        resumed(40, point, Tail((stored(3, 3), half), at(3)))
    assert resumed(40, StoredPoint(40, at(4)), Tail((half, stored(5, 5)), at(4))).after == 40
    assert resumed(50, point, Tail((half, stored(5, 5)), at(4))).after == 50


# --- the file ------------------------------------------------------------------------------------------------------


def holding(*numbers: int, whole_from: int = -1) -> ResumePoint:
    known = {number * SIZE: stored(number, number) for number in numbers}
    last = SIZE * max(numbers)
    return ResumePoint(last, pushed=last, stored=known, whole_from=whole_from)


def routed(numbers: Sequence[int], changed: Mapping[int, bytes] | None = None) -> Iterator[tuple[FileRecord, int]]:
    """Numbers below 100 in the first partition, the others in the second."""
    for number in numbers:
        yield record(number, (changed or {}).get(number, b"")), int(number >= 100)


def test_the_published_file_matches() -> None:
    points = [holding(0, 1, 2), holding(100, 101)]
    check_against_file(points, 0, routed([0, 1, 2, 3, 100, 101, 102]))
    check_against_file([holding(5, 6, whole_from=50)], 0, routed(range(9)))
    unread = ResumePoint(20, pushed=20, stored={20: StoredRecord(20, at(2), None)}, whole_from=10)
    check_against_file([unread], 0, routed(range(4), {2: b"another"}))


@pytest.mark.parametrize(
    ("points", "numbers", "changed", "reason"),
    [
        pytest.param(
            [holding(0, 1)], [0, 1], {1: b"x"}, "the record at byte 10 is not the one .* at 5:1", id="changed"
        ),
        pytest.param([holding(0, 2)], [0, 1, 2], {}, "lacks the record at byte 10 in partition 0", id="a gap"),
        pytest.param([holding(0, 1, 2)], [0, 1], {}, "has the sequence id 20 .* no record", id="shrunk"),
        pytest.param(
            [ResumePoint(40, 40, {}, whole_from=40)], [0, 1, 2, 3, 5], {}, "id 40", id="in the middle of a record"
        ),
        pytest.param([replace(holding(0), pushed=15)], [0, 1, 2], {}, "the sequence id 15", id="pushed, no record"),
        pytest.param([holding(0), holding(100)], [0, 1], {}, "partition 1 has the sequence id 1000", id="other keys"),
        pytest.param([holding(0, 1)], [0], {}, "begins at this byte: the file was shrunk or changed, its", id="cut"),
    ],
)
def test_another_file_does_not_match(
    points: list[ResumePoint], numbers: list[int], changed: Mapping[int, bytes], reason: str
) -> None:
    with pytest.raises(ConflictError, match=reason):
        check_against_file(points, 0, routed(numbers, changed))


def test_the_first_record_behind_the_hash_must_exist() -> None:
    with pytest.raises(ConflictError, match="the sequence id 20"):
        check_against_file([holding(2)], 20, routed([3]))


BLANK = ResumePoint(-1, pushed=-1, stored={}, whole_from=-1, is_blank=True)


def test_a_blank_partition_before_later_records_of_others_is_refused() -> None:
    with pytest.raises(ConflictError, match=r"partition 1 shows nothing .* byte 1000 .* byte 1010 .* checkpoint"):
        check_against_file([replace(holding(0), pushed=1010), BLANK], 0, routed([0, 100, 101]))
    check_against_file([holding(0, 2), BLANK], 0, routed([0, 2, 100]))
    check_against_file([BLANK, BLANK], 0, routed([0, 2, 100]))
