"""Brokers in memory that accept all passed requests."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.passed_requests import PassedRequest


@dataclass(frozen=True, slots=True)
class FakeBrokerAnswer:
    """The response of each broker."""

    status: int = 200
    headers: Sequence[tuple[bytes, bytes]] = ()
    body: bytes = b"[]"

    async def pieces(self) -> AsyncIterator[bytes]:
        yield self.body


@dataclass(slots=True)
class FakeBrokers:
    """`model.passed_requests.Brokers`; ``passed`` has the requests in order, ``failure`` replaces responses."""

    given: FakeBrokerAnswer = field(default_factory=FakeBrokerAnswer)
    failure: SidecarError | None = None
    passed: list[PassedRequest] = field(default_factory=list)

    @asynccontextmanager
    async def answer(self, request: PassedRequest) -> AsyncIterator[FakeBrokerAnswer]:
        self.passed.append(request)
        if self.failure is not None:
            raise self.failure
        yield self.given

    async def close(self) -> None:
        """Do nothing."""
