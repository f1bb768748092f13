"""A reading ends at the newest message or fails; a reader on its way back from seeking is asked again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import _pulsar
import pulsar
import pytest
from pulsar_sidecar.adapters.pulsar_client import clients
from pulsar_sidecar.adapters.pulsar_client.clients import has_more, messages_since


class Returning:
    """Finds no consumer at the broker for some questions, then answers."""

    def __init__(self, refusals: int) -> None:
        self._refusals: Iterator[int] = iter(range(refusals))

    def has_message_available(self) -> bool:
        if next(self._refusals, None) is None:
            return True
        raise pulsar.exceptions.BrokerMetadataError


def test_a_reader_that_is_not_back_yet_is_asked_again() -> None:
    assert has_more(Returning(3))  # type: ignore[arg-type]


def test_a_reader_that_never_comes_back_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_PAUSE_SECONDS", 0.0)
    with pytest.raises(pulsar.exceptions.BrokerMetadataError):
        has_more(Returning(1_000))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Stored:
    entry: int
    published_ms: int

    def message_id(self) -> _pulsar.MessageId:
        return _pulsar.MessageId(-1, 7, self.entry, -1)

    def publish_timestamp(self) -> int:
        return self.published_ms


class Reading:
    """Sees its messages, but not before it was asked ``late`` times whether there are any."""

    def __init__(self, stored: Sequence[Stored], late: int) -> None:
        self._waiting = list(stored)
        self._late = late
        self.closed = False

    def seek(self, since_ms: int) -> None:
        self._waiting = [each for each in self._waiting if each.published_ms >= since_ms]

    def has_message_available(self) -> bool:
        self._late -= 1
        return self._late < 0 and bool(self._waiting)

    def read_next(self, timeout_ms: int) -> Stored:
        if not self._waiting:
            raise pulsar.exceptions.Timeout
        return self._waiting.pop(0)

    def close(self) -> None:
        self.closed = True


class Topic:
    """Stands in for ``pulsar.Client``: its readers find what is stored, and what comes while they read."""

    def __init__(self, *published_ms: int, late: int = 0, lost: bool = False, newest_unseen: int = 0) -> None:
        self.stored = [Stored(entry, each) for entry, each in enumerate(published_ms)]
        self.later: list[Stored] = []
        self.late = late
        self.lost = lost
        self.newest_unseen = newest_unseen
        self.readers: list[Reading] = []

    def create_reader(self, topic: str, start: object, *, start_message_id_inclusive: bool = False) -> Reading:
        if start_message_id_inclusive:
            self.newest_unseen -= 1
            self.readers.append(Reading([] if self.newest_unseen >= 0 else self.stored[-1:], 0))
        else:
            self.readers.append(Reading([] if self.lost else self.stored + self.later, self.late))
        return self.readers[-1]

    def since(self, since_ms: int, *, seeking: bool = True) -> list[int]:
        messages = messages_since(self, "topic", since_ms, seeking=seeking)  # type: ignore[arg-type]
        found = [message.message_id().entry_id() for message in messages]
        assert all(reader.closed for reader in self.readers)
        return found


def test_a_reading_has_what_was_published_since() -> None:
    assert Topic(10, 20, 30).since(20) == [1, 2]
    assert Topic(10, 20, 30).since(0) == [0, 1, 2]


@pytest.mark.parametrize("published_ms", [(), (10, 20)])
def test_a_reading_ends_where_nothing_is_new_enough(published_ms: Sequence[int]) -> None:
    assert Topic(*published_ms).since(30) == []


def test_a_message_that_is_older_than_its_successor_hides_none() -> None:
    """Two sidecars' clocks differ."""
    assert Topic(30, 10).since(20) == [0]


def test_a_reader_that_sees_no_message_yet_does_not_end_the_reading() -> None:
    assert Topic(10, 20, 30, late=1).since(20) == [1, 2]


def test_one_reader_without_messages_does_not_mean_an_empty_topic() -> None:
    assert Topic(10, 20, 30, newest_unseen=2).since(20) == [1, 2]
    with pytest.raises(pulsar.exceptions.Timeout):
        Topic(10, 20, 30, newest_unseen=1_000).since(20)


@pytest.mark.parametrize("seeking", [True, False])
def test_only_a_reading_that_seeks_may_begin_too_late(seeking: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reading, "seek", lambda reader, since_ms: reader._waiting.__delitem__(slice(0, 2)))
    assert Topic(10, 20, 30).since(20, seeking=seeking) == ([2] if seeking else [1, 2])


def test_a_reading_that_cannot_get_to_the_newest_message_fails() -> None:
    with pytest.raises(pulsar.exceptions.Timeout):
        Topic(10, 20, 30, lost=True).since(20)


def test_messages_published_during_the_read_are_not_awaited() -> None:
    topic = Topic(10, 20)
    topic.later = [Stored(2, 30), Stored(3, 40)]
    assert topic.since(10) == [0, 1]
