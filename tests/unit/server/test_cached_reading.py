"""Readings that return soon whatever hangs."""

import asyncio
import threading
from dataclasses import dataclass, field

import pytest
from pulsar_sidecar.model.errors import InvalidInputError, SidecarError, TemporaryError
from pulsar_sidecar.server.cached_reading import CachedReading

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

    def reading(self) -> CachedReading[int]:
        return CachedReading(self.read, lambda: self.known, PATIENCE_SECONDS)


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    cluster.answers.set()
    return cluster


def test_a_caller_gets_what_was_read_after_it_asked(cluster: Cluster) -> None:
    async def ask() -> list[int]:
        reading = cluster.reading()
        return [await reading.within_timeout(), await reading.within_timeout()]

    assert asyncio.run(ask()) == [1, 2]


def test_hanging_read_returns_the_last_result_immediately(cluster: Cluster) -> None:
    async def ask() -> list[int]:
        reading = cluster.reading()
        first = await reading.within_timeout()
        cluster.answers.clear()
        late = await reading.within_timeout()
        loop = asyncio.get_running_loop()
        began = loop.time()
        many = await asyncio.gather(*(reading.within_timeout() for _ in range(50)))
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
            await reading.within_timeout()
        cluster.failure = None
        await reading.within_timeout()
        cluster.failure = TemporaryError("away again")
        return await reading.within_timeout()

    assert asyncio.run(ask()) == 2


def test_a_first_reading_that_hangs_is_an_error(cluster: Cluster) -> None:
    async def ask() -> None:
        cluster.answers.clear()
        try:
            await cluster.reading().within_timeout()
        finally:
            cluster.answers.set()

    with pytest.raises(TemporaryError, match="has not answered within"):
        asyncio.run(ask())


def test_other_errors_are_raised_despite_a_cached_result(cluster: Cluster) -> None:
    async def ask() -> None:
        reading = cluster.reading()
        await reading.within_timeout()
        cluster.failure = InvalidInputError("wrong")
        await reading.within_timeout()

    with pytest.raises(InvalidInputError):
        asyncio.run(ask())
