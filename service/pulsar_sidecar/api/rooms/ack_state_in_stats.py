"""Passed requests for statistics, whose answers get ``blockedOnAckStatePersistent`` (PIP-299).

The broker decides with the caller's own credential first; the sidecar adds only to what the broker has answered.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from pulsar_sidecar.ack_state.stats_answers import PausesInStats
from pulsar_sidecar.api.paths import v1_topic, v2_topic
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.passed_requests import BrokerAnswer, Brokers, PassedRequest

_STATS = re.compile(r"/admin/(v2/)?persistent/((?:[^/]+/){2,3}[^/]+)/(?:partitioned-)?stats/?")
_OK = 200


@dataclass(slots=True)
class _Amended:
    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes

    async def pieces(self) -> AsyncIterator[bytes]:
        yield self.body


class BrokersWithPauses:
    """`model.passed_requests.Brokers`, with the key in statistics; it holds the whole of such an answer."""

    def __init__(self, brokers: Brokers, pauses: PausesInStats) -> None:
        self._brokers = brokers
        self._pauses = pauses

    @asynccontextmanager
    async def answer(self, request: PassedRequest) -> AsyncIterator[BrokerAnswer]:
        topic = await _topic_of(request)
        if topic is not None:
            readable = [each for each in request.headers if each[0].lower() != "accept-encoding"]
            request = replace(request, headers=readable)
        async with self._brokers.answer(request) as answer:
            yield answer if topic is None or answer.status != _OK else await self._amended(topic, answer)

    async def close(self) -> None:
        await self._brokers.close()

    async def _amended(self, topic: TopicName, answer: BrokerAnswer) -> BrokerAnswer:
        body = b"".join([piece async for piece in answer.pieces()])
        body = await asyncio.to_thread(self._pauses.amended, topic, body)
        kept = [each for each in answer.headers if each[0].lower() not in (b"content-length", b"transfer-encoding")]
        return _Amended(answer.status, [*kept, (b"Content-Length", str(len(body)).encode())], body)


async def _topic_of(request: PassedRequest) -> TopicName | None:
    """The topic whose statistics are asked for; None for other requests."""
    found = _STATS.fullmatch(request.target.partition("?")[0])
    if found is None or request.method != "GET":
        return None
    names = found[2].split("/")
    try:
        if found[1] and len(names) == 3:
            return await v2_topic(*names)
        return await v1_topic(*names) if not found[1] and len(names) == 4 else None
    except InvalidInputError:
        return None
