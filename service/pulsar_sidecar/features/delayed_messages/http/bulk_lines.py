"""Streams of JSON lines: outcomes are sent while the request's lines still arrive.

Invariants: every line that is not empty gets exactly one outcome, in order; an invalid line fails alone; a batch that
fails is reported in its own lines, because the response's status was sent long before.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import partial
from typing import Annotated, Final

import msgspec
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from pulsar_sidecar.features.delayed_messages.cancel.requests import (
    EARLIEST_DELIVER_AT_MS,
    LATEST_DELIVER_AT_MS,
    Target,
)
from pulsar_sidecar.features.delayed_messages.http.requests import CancelLine, names_of_line
from pulsar_sidecar.features.delayed_messages.results import CancellationStatus, Cause, MessageOutcome, Verdict
from pulsar_sidecar.features.delayed_messages.selecting import SelectedBatch
from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.errors import InvalidInputError, NotFoundError, PermanentError, SidecarError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, EntryId, LedgerId, Position

LINES_AT_ONCE: Final = 5_000
BATCHES_AT_ONCE: Final = 3
MAX_LINE_BYTES: Final = 64 * 1024
_MAX_PROBLEM: Final = 200

MEDIA_TYPE: Final = "application/x-ndjson"

Cancel = Callable[[Sequence[Target]], list[MessageOutcome]]
_Work = Callable[[], bytes]
_VALID_ID = msgspec.Meta(ge=0, le=MAX_LEDGER_ID)


@decodable
class _PlainLine(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Line as most callers write it; `CancelLine` reads any other, and finds the words for invalid ones."""

    ledger_id: Annotated[LedgerId, _VALID_ID]
    entry_id: Annotated[EntryId, _VALID_ID]
    deliver_at: Annotated[int, msgspec.Meta(ge=EARLIEST_DELIVER_AT_MS, le=LATEST_DELIVER_AT_MS)]
    subscription_names: tuple[str, ...] = ()


_decoded_plainly: Final = msgspec.json.Decoder(_PlainLine).decode
_OutcomeLine: Final = decodable(
    msgspec.defstruct("_OutcomeLine", [field.name for field in fields(MessageOutcome)], rename="camel")
)
_ENCODER: Final = msgspec.json.Encoder()


class LinesResponse(StreamingResponse):
    """Response that is sent while the request's lines are still being read.

    Starlette's own response waits for the caller's disconnect, and would consume the request's lines.
    """

    media_type = MEDIA_TYPE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):  # no client reads the rest
            await self.stream_response(send)


async def carried_out(chunks: AsyncIterator[bytes], cancel: Cancel) -> AsyncIterator[bytes]:
    """Cancel the messages of lines; return the outcomes, one line each, once the first lines have arrived.

    Raises:
        InvalidInputError: there are no lines.
    """
    batches = _batches(chunks)
    lines: list[bytes] = await anext(batches, [])
    if not any(line.strip() for line in lines):
        raise InvalidInputError("the body has no lines; write one JSON object per line, with ledgerId and entryId")

    async def works() -> AsyncIterator[_Work]:
        first, batch = 1, lines
        while batch:
            yield partial(_batch, batch, first, cancel)
            first += len(batch)
            batch = await anext(batches, [])

    return _in_order(works(), BATCHES_AT_ONCE)


def selected_carried_out(
    batches: Sequence[SelectedBatch], cancel: Callable[[SelectedBatch], list[MessageOutcome]]
) -> AsyncIterator[bytes]:
    """Cancel the selected messages; yield the outcomes, one line each, batch by batch.

    One batch at a time, because each reads from the cursor how much room the previous one left.
    """

    async def works() -> AsyncIterator[_Work]:
        first = 1
        for batch in batches:
            yield partial(_selected, batch, first, cancel)
            first += len(batch)

    return _in_order(works(), 1)


async def _in_order(works: AsyncIterator[_Work], at_once: int) -> AsyncIterator[bytes]:
    """Run at most ``at_once`` batches at a time, and yield their lines in order."""
    running: deque[asyncio.Task[bytes]] = deque()
    try:
        async for work in works:
            running.append(asyncio.create_task(run_in_threadpool(work)))
            if len(running) >= at_once:
                yield await running.popleft()
        while running:
            yield await running.popleft()
    finally:
        # After a disconnect, running batches still finish: a batch that is half done would help no caller.
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
    outcomes: dict[int, MessageOutcome] = {}
    targets: dict[int, Target] = {}
    for number, line in enumerate(lines, first):
        if line.strip():
            try:
                targets[number] = _target(line)
            except InvalidInputError as error:
                outcomes[number] = _failed(CancellationStatus.REFUSED, Cause.INVALID, error)
    cancelled = _outcomes(len(targets), lambda: cancel(list(targets.values())))
    outcomes.update(zip(targets, cancelled, strict=True))
    return _encoded((number, outcomes[number]) for number in sorted(outcomes))


def _selected(batch: SelectedBatch, first: int, cancel: Callable[[SelectedBatch], list[MessageOutcome]]) -> bytes:
    return _encoded(enumerate(_outcomes(len(batch), lambda: cancel(batch)), first))


def _target(line: bytes) -> Target:
    if len(line) > MAX_LINE_BYTES:
        raise InvalidInputError(f"the line is longer than {MAX_LINE_BYTES} bytes")
    try:
        plain = _decoded_plainly(line)
        position = Position(plain.ledger_id, plain.entry_id)
        return Target(position, plain.deliver_at, None, names_of_line(plain.subscription_names))
    except (msgspec.MsgspecError, UnicodeError, InvalidInputError):
        return _described(line)


def _described(line: bytes) -> Target:
    """Return the target of a line that has more than the usual fields; raise for an invalid one."""
    try:
        return CancelLine.model_validate_json(line).checked_target()
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise InvalidInputError(f"{place}: {problem['msg']}"[:_MAX_PROBLEM].removeprefix(": ")) from error


def _outcomes(count: int, cancel: Callable[[], list[MessageOutcome]]) -> list[MessageOutcome]:
    try:
        return cancel() if count else []
    except NotFoundError as error:
        failure = _failed(CancellationStatus.NOT_FOUND, Cause.NO_TOPIC, error)
    except PermanentError as error:
        failure = _failed(CancellationStatus.REFUSED, Cause.BROKER, error)
    except SidecarError as error:
        # Some may be in the log, or acknowledged on one of several subscriptions or partitions.
        failure = _failed(CancellationStatus.UNKNOWN, Cause.BROKER, error)
    return [failure] * count


def _failed(proof: CancellationStatus, cause: Cause, error: SidecarError) -> MessageOutcome:
    return MessageOutcome(None, None, None, False, (Verdict(None, proof, cause, str(error)),), ())


def _encoded(numbered: Iterable[tuple[int, MessageOutcome]]) -> bytes:
    return _ENCODER.encode_lines(
        [
            _OutcomeLine(number, one.cancellation_id, one.topic, one.cancelled, one.verdicts, one.warnings)
            for number, one in numbered
        ]
    )
