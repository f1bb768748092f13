"""Lines in, verdicts out, while the lines still come in.

Invariants: every line that is not empty gets exactly one verdict, in order; a bad one fails alone; what could not be
carried out reports that in its own line, because the answer's status was sent long before.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import orjson
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from pulsar_sidecar.api.rooms.delayed_delivery.schemas import CancelLine
from pulsar_sidecar.delayed_delivery.cancel.requests import (
    CancellationStatus,
    Cause,
    SubscriptionResult,
    Target,
    TargetOutcome,
)
from pulsar_sidecar.delayed_delivery.selecting import SelectedBatch
from pulsar_sidecar.model.errors import InvalidInputError, NotFoundError, PermanentError, SidecarError

LINES_AT_ONCE: Final = 5_000
BATCHES_AT_ONCE: Final = 3
MAX_LINE_BYTES: Final = 64 * 1024
_MAX_PROBLEM: Final = 200

MEDIA_TYPE: Final = "application/x-ndjson"

Cancel = Callable[[Sequence[Target]], list[TargetOutcome]]
_Work = Callable[[], bytes]


class LinesResponse(StreamingResponse):
    """Sends lines while the request's own lines are still being read.

    Starlette's own response listens for the caller's leaving, and would take the request's lines for that.
    """

    media_type = MEDIA_TYPE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):  # the rest has no reader any more
            await self.stream_response(send)


async def carried_out(chunks: AsyncIterator[bytes], cancel: Cancel) -> AsyncIterator[bytes]:
    """The verdicts, one line each, once the first lines have come in.

    Raises:
        InvalidInputError: there are none.
    """
    batches = _batches(chunks)
    lines: list[bytes] = await anext(batches, [])
    if not any(line.strip() for line in lines):
        raise InvalidInputError("the body has no lines; write one JSON object a line, with ledgerId and entryId")

    async def works() -> AsyncIterator[_Work]:
        first, batch = 1, lines
        while batch:
            yield partial(_batch, batch, first, cancel)
            first += len(batch)
            batch = await anext(batches, [])

    return _in_order(works(), BATCHES_AT_ONCE)


def selected_carried_out(
    batches: Sequence[SelectedBatch], cancel: Callable[[SelectedBatch], list[TargetOutcome]]
) -> AsyncIterator[bytes]:
    """The verdicts on what a selection found, one line each; they leave by batches.

    One batch after the other: the next one finds in the cursor how much room this one has left there.
    """

    async def works() -> AsyncIterator[_Work]:
        first = 1
        for batch in batches:
            yield partial(_selected, batch, first, cancel)
            first += len(batch)

    return _in_order(works(), 1)


async def _in_order(works: AsyncIterator[_Work], at_once: int) -> AsyncIterator[bytes]:
    """So many batches are on their way at a time."""
    running: deque[asyncio.Task[bytes]] = deque()
    try:
        async for work in works:
            running.append(asyncio.create_task(run_in_threadpool(work)))
            if len(running) >= at_once:
                yield await running.popleft()
        while running:
            yield await running.popleft()
    finally:
        # The caller has gone: what was begun ends by itself, since a half-done batch would help no caller.
        await asyncio.gather(*running, return_exceptions=True)


async def _batches(chunks: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    lines: list[bytes] = []
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        lines += whole
        if len(rest) > MAX_LINE_BYTES:
            # No valid line is that long: keep enough of it to report that, and continue at its end.
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
            verdicts[index] = _bad_line(first + index, CancellationStatus.REFUSED, Cause.INVALID, error)
    numbers = [first + index for index in indexes]
    for index, verdict in zip(indexes, _verdicts(numbers, lambda: cancel(targets)), strict=True):
        verdicts[index] = verdict
    return b"".join(verdicts)


def _selected(batch: SelectedBatch, first: int, cancel: Callable[[SelectedBatch], list[TargetOutcome]]) -> bytes:
    numbers = range(first, first + len(batch))
    return b"".join(_verdicts(numbers, lambda: cancel(batch)))


def _target(line: bytes) -> Target:
    if len(line) > MAX_LINE_BYTES:
        raise InvalidInputError(f"the line is longer than {MAX_LINE_BYTES} bytes")
    try:
        return CancelLine.model_validate_json(line).checked_target()
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise InvalidInputError(f"{place}: {problem['msg']}"[:_MAX_PROBLEM].removeprefix(": ")) from error


def _verdicts(numbers: Sequence[int], cancel: Callable[[], list[TargetOutcome]]) -> list[bytes]:
    if not numbers:
        return []
    try:
        outcomes = cancel()
    except NotFoundError as error:
        return [_bad_line(number, CancellationStatus.NOT_FOUND, Cause.NO_TOPIC, error) for number in numbers]
    except PermanentError as error:
        return [_bad_line(number, CancellationStatus.REFUSED, Cause.BROKER, error) for number in numbers]
    except SidecarError as error:
        # Some may be in the log, or acknowledged on one of several subscriptions or partitions.
        return [_bad_line(number, CancellationStatus.UNKNOWN, Cause.BROKER, error) for number in numbers]
    return [
        _line(number, str(one.target.position), str(one.topic), one.cancelled, one.results, one.warnings)
        for one, number in zip(outcomes, numbers, strict=True)
    ]


def _bad_line(number: int, status: CancellationStatus, cause: Cause, error: SidecarError) -> bytes:
    return _line(number, None, None, False, (SubscriptionResult(None, status, cause, str(error)),), ())


def _line(
    number: int,
    position: str | None,
    topic: str | None,
    cancelled: bool,
    results: Sequence[SubscriptionResult],
    warnings: Sequence[str],
) -> bytes:
    """`OutcomeAnswer` as one line, made by hand because bulk requests make very many."""
    document = {
        "line": number,
        "cancellationId": position,
        "topic": topic,
        "cancelled": cancelled,
        "verdicts": [
            {"subscription": one.subscription, "proof": one.status, "cause": one.cause, "reason": one.reason}
            for one in results
        ],
        "warnings": warnings,
    }
    return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)
