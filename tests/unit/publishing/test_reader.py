"""`ExactlyOnceReader`: data and position together, so that a program that is killed at any step applies each once."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pulsar_sidecar.features.publishing.reader import ExactlyOnceReader, ReadMessage, ReadPosition
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError, PermanentError, TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName, parse_topic_name

from tests.cluster.reading_into_sqlite import apply, opened, positions
from tests.fakes.clock import FakeClock

TOPIC = parse_topic_name("public/default/records")
STEPS = ["before reading", "after reading", "between data and position", "before the commit", "after the commit"]


def message(number: int, partition: int = 0) -> ReadMessage:
    """Three to a batch, two batches to a ledger."""
    place = ReadPosition(LedgerId(number // 6), EntryId(number // 3 % 2), partition, number % 3)
    return ReadMessage(b"w%d-%d" % (partition, number), None, {}, None, partition, place)


@dataclass
class FakeSource:
    """`MessageSource`; this many messages are delivered ``again`` in the middle, as a client may after a failure."""

    stored: list[list[ReadMessage]]
    again: int = 0
    failures: list[Exception] = field(default_factory=list)
    opened: int = 0
    clock: FakeClock = field(default_factory=FakeClock)

    def partitions(self, topic: TopicName) -> int:
        return len(self.stored) if len(self.stored) > 1 else 0

    def open(self, topic: TopicName, partition: int, start: ReadPosition | None) -> "FakeReading":
        self.opened += 1
        first = 0
        if start is not None:
            first = sum(start.is_after(one.position) for one in self.stored[partition])
        return FakeReading(self, self.stored[partition], first, self.again)


@dataclass
class FakeReading:
    source: FakeSource
    messages: list[ReadMessage]
    at: int
    again: int

    def next(self, wait_seconds: float) -> ReadMessage | None:
        if self.source.failures:
            raise self.source.failures.pop()
        if self.at >= len(self.messages):
            self.source.clock.wait_seconds(wait_seconds)
            return None
        found = self.messages[self.at]
        self.at, self.again = max(0, self.at + 1 - self.again), 0
        return found

    def close(self) -> None:
        pass


class Killed(BaseException):
    """Raised like ``kill -9``: no code of the process runs after it."""


def reader(source: FakeSource, after: dict[int, ReadPosition] | None = None) -> ExactlyOnceReader:
    return ExactlyOnceReader(source, source.clock, TOPIC, after)


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("step_killed_at", STEPS)
@pytest.mark.parametrize("every", [1, 2, 5])
def test_each_message_is_applied_once_wherever_the_program_is_killed(
    partitions: int, step_killed_at: str, every: int, tmp_path: Path
) -> None:
    source = FakeSource([[message(number, part) for number in range(20)] for part in range(partitions)], again=2)
    steps: Counter[str] = Counter()
    kills: list[str] = []

    def step(name: str) -> None:
        steps[name] += 1
        if name == step_killed_at and steps[name] % (every + 1) == every and len(kills) < 12:
            kills.append(name)
            raise Killed

    while True:
        database = opened(tmp_path / "totals.db")
        try:
            with reader(source, positions(database)) as one:
                apply(one, database, step, 3)
            break
        except Killed:
            continue
        finally:
            database.close()
    assert len(kills) > 2
    database = opened(tmp_path / "totals.db")
    assert dict(database.execute("select * from totals")) == {
        f"w{part}-{number}": 1 for part in range(partitions) for number in range(20)
    }
    database.close()


def test_a_failed_reading_is_reopened_at_its_position() -> None:
    source = FakeSource([[message(number) for number in range(9)]], again=4)
    one = reader(source)
    found = []
    for number in range(9):
        source.failures = [TemporaryError("moving")] * (number % 3)
        found.append(one.read(10))
    assert [each.payload for each in found if each] == [b"w0-%d" % number for number in range(9)]
    assert source.opened > 5
    assert one.read(1) is None


@pytest.mark.parametrize(("kept", "first"), [([3, 4], "0:1:0:0"), ([7], "1:0:0:1")])
def test_a_reader_whose_position_is_gone_refuses_instead_of_skipping(kept: list[int], first: str) -> None:
    source = FakeSource([[message(number) for number in kept]])
    one = reader(source, {0: message(2).position})
    with pytest.raises(ConflictError, match=rf"no longer holds .* 0:0:0:2.* begins at {first}: .*retention"):
        one.read(1)
    with pytest.raises(ConflictError, match="no longer holds"):
        one.read(1)
    assert reader(source).read(1) == message(kept[0])


def test_a_reopened_reading_refuses_a_gap_too() -> None:
    source = FakeSource([[message(number) for number in range(9)]])
    one = reader(source)
    assert one.read(1) == message(0)
    source.failures = [TemporaryError("moving")]
    source.stored = [[message(number) for number in range(3, 9)]]
    with pytest.raises(ConflictError, match="no longer holds"):
        one.read(10)


@pytest.mark.parametrize("comes", [5, 0])
def test_an_emptied_topic_returns_nothing_until_a_new_message(comes: int) -> None:
    """Trimmed, or created again with lower ledger ids."""
    source = FakeSource([[]])
    one = reader(source, {0: message(2).position})
    assert one.read(1) is None
    source.stored[0].append(message(comes))
    with pytest.raises(ConflictError, match="no longer holds"):
        one.read(1)


def test_a_reader_gives_up_after_its_patience_and_can_be_asked_again() -> None:
    source = FakeSource([[message(0)]])
    one = reader(source)
    source.failures = [TemporaryError("no broker")] * 1_000
    with pytest.raises(TemporaryError, match="no broker"):
        next(iter(one))
    source.failures = []
    assert next(iter(one)) == message(0)
    source.failures = [PermanentError("not authorized")]
    with pytest.raises(PermanentError):
        one.read(1)


def test_positions_are_text_and_back() -> None:
    place = ReadPosition(LedgerId(12), EntryId(3), -1, 99)
    assert str(place) == "12:3:-1:99"
    assert ReadPosition.parse("12:3:-1:99") == place
    chunked = ReadPosition(LedgerId(12), EntryId(3), 0, -1, Position(LedgerId(11), EntryId(9)))
    assert str(chunked) == "12:3:0:-1:11:9"
    assert ReadPosition.parse("12:3:0:-1:11:9") == chunked
    for text in ("12:3:1:1:5", "12:3:1:1:-1:5", "", "12:3", "12:3:-2:1", "12:3:1:1 ", "a:b:c:d"):
        with pytest.raises(InvalidInputError, match="ledgerId:entryId"):
            ReadPosition.parse(text)


def test_a_position_of_a_missing_partition_is_refused() -> None:
    with pytest.raises(ConflictError, match="partition 3"):
        reader(FakeSource([[], [], []]), {3: message(0).position})
