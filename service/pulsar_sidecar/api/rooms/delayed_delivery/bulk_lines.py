"""Lines in, verdicts out, while the lines still come in.

Invariants: every line that is not empty gets exactly one verdict, in order; a bad one fails alone; what could not be
carried out says so in its own line, because the answer's status was sent long before.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from pulsar_sidecar.api.rooms.delayed_delivery.converters import bad_line, outcome_line, target_of_line
from pulsar_sidecar.delayed_delivery.cancel.requests import CancellationStatus, Cause, Outcome, Target
from pulsar_sidecar.model.errors import InvalidInputError, NotFoundError, SidecarError

LINES_AT_ONCE: Final = 5_000
BATCHES_AT_ONCE: Final = 3
MAX_LINE_BYTES: Final = 64 * 1024

MEDIA_TYPE: Final = "application/x-ndjson"

Cancel = Callable[[Sequence[Target]], list[Outcome]]


class LinesResponse(StreamingResponse):
    """Sends lines while the request's own lines are still being read.

    Starlette's own response listens for the caller's leaving, and would take the request's lines for that.
    """

    media_type = MEDIA_TYPE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.stream_response(send)


async def carried_out(chunks: AsyncIterator[bytes], cancel: Cancel) -> AsyncIterator[bytes]:
    """The verdicts, one line each, once the first lines have come in.

    Raises:
        InvalidInputError: there are none.
    """
    batches = _batches(chunks)
    first: list[bytes] = await anext(batches, [])
    if not any(line.strip() for line in first):
        raise InvalidInputError("the body has no lines; write one JSON object a line, with ledgerId and entryId")
    return _verdicts_of(first, batches, cancel)


async def _verdicts_of(lines: list[bytes], batches: AsyncIterator[list[bytes]], cancel: Cancel) -> AsyncIterator[bytes]:
    """A few batches are on their way at a time."""
    running: deque[asyncio.Task[bytes]] = deque()
    first = 1
    try:
        while lines:
            running.append(asyncio.create_task(run_in_threadpool(_batch, lines, first, cancel)))
            first += len(lines)
            if len(running) >= BATCHES_AT_ONCE:
                yield await running.popleft()
            lines = await anext(batches, [])
        while running:
            yield await running.popleft()
    finally:
        # The caller has gone: what was begun ends by itself, since a half-done batch would help nobody.
        await asyncio.gather(*running, return_exceptions=True)


async def _batches(chunks: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    lines: list[bytes] = []
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        lines += whole
        if len(rest) > MAX_LINE_BYTES:
            # Nobody's line is that long: keep enough of it to say so, and go on at its end.
            rest = rest[: MAX_LINE_BYTES + 1]
        while len(lines) >= LINES_AT_ONCE:
            yield lines[:LINES_AT_ONCE]
            del lines[:LINES_AT_ONCE]
    if rest:
        lines.append(rest)
    if lines:
        yield lines


def _batch(lines: Sequence[bytes], first: int, cancel: Cancel) -> bytes:
    verdicts: list[bytes] = [b""] * len(lines)
    targets: list[Target] = []
    indexes: list[int] = []
    for index, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            targets.append(_target(line))
            indexes.append(index)
        except InvalidInputError as error:
            verdicts[index] = bad_line(str(error), first + index)
    for index, verdict in zip(indexes, _verdicts(targets, [first + index for index in indexes], cancel), strict=True):
        verdicts[index] = verdict
    return b"".join(verdicts)


def _target(line: bytes) -> Target:
    if len(line) > MAX_LINE_BYTES:
        raise InvalidInputError(f"the line is longer than {MAX_LINE_BYTES} bytes")
    return target_of_line(line)


def _verdicts(targets: Sequence[Target], numbers: Sequence[int], cancel: Cancel) -> list[bytes]:
    if not targets:
        return []
    try:
        outcomes = cancel(targets)
    except NotFoundError as error:
        return [bad_line(str(error), number, CancellationStatus.NOT_FOUND, Cause.NO_TOPIC) for number in numbers]
    except SidecarError as error:
        return [bad_line(f"{error}", number, CancellationStatus.REFUSED, Cause.BROKER) for number in numbers]
    return [outcome_line(outcome, number) for outcome, number in zip(outcomes, numbers, strict=True)]
