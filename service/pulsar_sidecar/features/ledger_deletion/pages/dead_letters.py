"""Dead-letter page: the records that the sidecars no longer retry, with the evidence of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from pulsar_sidecar.features.ledger_deletion.pages.deletions import BASE, HERE, ledger_id_of, number_of
from pulsar_sidecar.features.ledger_deletion.results import DeadLetter, RecordedLedger, RedriveResult, recorded_ledger
from pulsar_sidecar.reports.formatting import format_count
from pulsar_sidecar.web.actions import Action, ActionField
from pulsar_sidecar.web.ask import Reading, read
from pulsar_sidecar.web.filters import PAGE_ROWS
from pulsar_sidecar.web.shell import act, form_of, page
from pulsar_sidecar.web.words import command

LIST = f"{HERE}/dead-letters"
_KEEP_SECONDS = 30.0

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Row:
    """Row of the list; ``evidence`` is the record as it was written."""

    letter: DeadLetter
    record: RecordedLedger | None
    evidence: str
    redrive: Action | None


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """A page of the list; ``following`` is None on the last one."""

    reading: Reading
    rows: Sequence[Row]
    first: str | None
    following: str | None
    redrive: Action


@router.get(LIST)
async def dead_letters(request: Request) -> Response:
    """Show dead letters, oldest first; brokers read them from a topic, so an answer is reused for half a minute."""
    parameters = {"limit": PAGE_ROWS, "after": request.query_params.get("after") or None}
    reading = await read(request, f"{BASE}/dead-letters", parameters, _KEEP_SECONDS)
    view = view_of(reading, is_first=parameters["after"] is None)
    return await page(request, "dead_letters.html.j2", view=view, title="Dead letters")


def view_of(reading: Reading, *, is_first: bool) -> DeadLetters:
    """Return the page of this answer."""
    letters = reading.parsed(list[DeadLetter]) or []
    following = f"{LIST}?{urlencode({'after': letters[-1].message_id})}" if len(letters) == PAGE_ROWS else None
    return DeadLetters(
        reading=reading,
        rows=[row_of(letter) for letter in letters],
        first=None if is_first else LIST,
        following=following,
        redrive=Action(
            "Redrive dead letters",
            f"{LIST}/redrive",
            command("ledger-deletion", "dlq", "redrive", "--limit", "NUMBER"),
            [ActionField("limit", "Maximum number, oldest first", "10000", "number", required=True)],
            note="They go back to the system topic with their retry counts reset; each ledger is checked again.",
        ),
    )


def row_of(letter: DeadLetter) -> Row:
    """Return the row of one dead letter."""
    record = recorded_ledger(letter.record)
    evidence = letter.raw if record is None else orjson.dumps(letter.record, option=orjson.OPT_INDENT_2).decode()
    action = None
    if record is not None:
        ledger = str(record.ledger_id)
        line = command("ledger-deletion", "dlq", "redrive", ledger)
        action = Action("Redrive", f"{LIST}/redrive", line, hidden={"ledger": ledger})
    return Row(letter, record, evidence, action)


@router.post(f"{LIST}/redrive")
async def redrive(request: Request) -> Response:
    form = await form_of(request)
    body: dict[str, object] = {}
    if form.get("ledger"):
        body["ledgerIds"] = [ledger_id_of(form["ledger"])]
    if (limit := number_of(form.get("limit", ""), "the limit")) is not None:
        body["limit"] = int(limit) if limit.is_integer() else limit
    return await act(
        request, "POST", f"{BASE}/dead-letters/redrive", body, back=LIST, done=_redriven, kind=RedriveResult
    )


def _redriven(done: RedriveResult) -> str:
    return f"{format_count(done.redriven, 'dead letter')} sent back, {done.left:,} left."
