"""Dead letters: the records that the sidecars gave up, with the evidence of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.web.actions import Action, ActionField
from pulsar_sidecar.web.ask import Reading, read
from pulsar_sidecar.web.filters import PAGE_ROWS
from pulsar_sidecar.web.pages.deletions import BASE, HERE, ledger_id_of, number_of
from pulsar_sidecar.web.shell import act, form_of, page
from pulsar_sidecar.web.words import command

LIST = f"{HERE}/dead-letters"
_KEEP_SECONDS = 30.0

router = APIRouter()


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One row; ``evidence`` is the record as it was written."""

    letter: Any
    record: Any
    evidence: str
    redrive: Action | None


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """A page of the list; ``following`` is None on the last one."""

    reading: Reading
    rows: Sequence[DeadLetter]
    first: str | None
    following: str | None
    redrive: Action


@router.get(LIST)
async def dead_letters(request: Request) -> Response:
    """The oldest first; brokers read them from a topic, so they are read again after half a minute."""
    parameters = {"limit": PAGE_ROWS, "after": request.query_params.get("after") or None}
    reading = await read(request, f"{BASE}/dead-letters", parameters, _KEEP_SECONDS)
    view = view_of(reading, is_first=parameters["after"] is None)
    return await page(request, "dead_letters.html.j2", view=view, title="Dead letters")


def view_of(reading: Reading, *, is_first: bool) -> DeadLetters:
    """The page of this answer."""
    letters: list[Any] = reading.value or []
    following = f"{LIST}?{urlencode({'after': letters[-1]['messageId']})}" if len(letters) == PAGE_ROWS else None
    return DeadLetters(
        reading=reading,
        rows=[row_of(letter) for letter in letters],
        first=None if is_first else LIST,
        following=following,
        redrive=Action(
            "Redrive dead letters",
            f"{LIST}/redrive",
            command("ledger-deletion", "dlq", "redrive", "--limit", "NUMBER"),
            [ActionField("limit", "At most so many, the oldest first", "10000", "number", required=True)],
            note="They go back to the system topic with a fresh count of tries; each ledger is checked again.",
        ),
    )


def row_of(letter: Any) -> DeadLetter:
    """One dead letter."""
    record = letter["record"]
    evidence = letter["raw"] if record is None else orjson.dumps(record, option=orjson.OPT_INDENT_2).decode()
    action = None
    if record is not None:
        ledger = str(record["ledgerId"])
        line = command("ledger-deletion", "dlq", "redrive", ledger)
        action = Action("Redrive", f"{LIST}/redrive", line, hidden={"ledger": ledger})
    return DeadLetter(letter, record, evidence, action)


@router.post(f"{LIST}/redrive")
async def redrive(request: Request) -> Response:
    form = await form_of(request)
    body: dict[str, Any] = {}
    if form.get("ledger"):
        body["ledgerIds"] = [ledger_id_of(form["ledger"])]
    if (limit := number_of(form.get("limit", ""), "the limit")) is not None:
        body["limit"] = int(limit) if limit.is_integer() else limit
    return await act(request, "POST", f"{BASE}/dead-letters/redrive", body, back=LIST, done=_redriven)


def _redriven(answer: Any) -> str:
    return f"{format_count(answer['redriven'], 'dead letter')} sent back, {answer['left']:,} left."
