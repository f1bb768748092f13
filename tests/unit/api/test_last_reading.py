"""Readings that answer soon whatever hangs."""

import asyncio
import threading
from dataclasses import dataclass, field

import pytest
from pulsar_sidecar.api.last_reading import LastReading
from pulsar_sidecar.model.errors import InvalidInputError, SidecarError, TemporaryError

PATIENCE_SECONDS = 0.05


@dataclass(slots=True)
class Cluster:
    """Counts readings; it hangs, or fails, when the test wants it."""

    readings: int = 0
    known: int | None = None
    failure: SidecarError | None = None
    answers: threading.Event = field(default_factory=threading.Event)

    def read(self) -> None:
        self.readings += 1
        number = self.readings
        self.answers.wait(10)
        if self.failure is not None:
            raise self.failure
        self.known = number

    def reading(self) -> LastReading[int]:
        return LastReading(self.read, lambda: self.known, PATIENCE_SECONDS)


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.answers.set()
    return cluster


def test_a_caller_gets_what_was_read_after_it_asked(cluster: Cluster) -> None:
    async def ask() -> list[int]:
        reading = cluster.reading()
        return [await reading.soon(), await reading.soon()]

    assert asyncio.run(ask()) == [1, 2]


def test_once_a_reading_hangs_all_get_the_last_one_at_once(cluster: Cluster) -> None:
    async def ask() -> list[int]:
        reading = cluster.reading()
        first = await reading.soon()
        cluster.answers.clear()
        late = await reading.soon()
        loop = asyncio.get_running_loop()
        began = loop.time()
        many = await asyncio.gather(*(reading.soon() for _ in range(50)))
        assert loop.time() - began < PATIENCE_SECONDS
        cluster.answers.set()
        return [first, late, *set(many)]

    assert asyncio.run(ask()) == [1, 1, 1]
    assert cluster.readings == 2


def test_a_failure_is_passed_on_only_where_nothing_was_read(cluster: Cluster) -> None:
    async def ask() -> int:
        reading = cluster.reading()
        cluster.failure = TemporaryError("away")
        with pytest.raises(TemporaryError, match="away"):
            await reading.soon()
        cluster.failure = None
        await reading.soon()
        cluster.failure = TemporaryError("away again")
        return await reading.soon()

    assert asyncio.run(ask()) == 2


def test_a_first_reading_that_hangs_is_an_error(cluster: Cluster) -> None:
    async def ask() -> None:
        cluster.answers.clear()
        try:
            await cluster.reading().soon()
        finally:
            cluster.answers.set()

    with pytest.raises(TemporaryError, match="has not answered within"):
        asyncio.run(ask())


def test_another_error_than_the_clusters_is_no_matter_of_patience(cluster: Cluster) -> None:
    async def ask() -> None:
        reading = cluster.reading()
        await reading.soon()
        cluster.failure = InvalidInputError("wrong")
        await reading.soon()

    with pytest.raises(InvalidInputError):
        asyncio.run(ask())
