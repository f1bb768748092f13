"""Pages of records: those that wait for deletion, and those that the sidecars no longer retry."""

from urllib.parse import urlencode

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from pulsar_sidecar.features.ledger_deletion.pages.deletions import BASE, HERE, ledger_id_of, number_of
from pulsar_sidecar.features.ledger_deletion.results import DeadLetter, PendingRecord, RedriveResult
from pulsar_sidecar.reports.formatting import format_count
from pulsar_sidecar.web.actions import Action, ActionField
from pulsar_sidecar.web.ask import read
from pulsar_sidecar.web.filters import PAGE_ROWS, offset_of
from pulsar_sidecar.web.shell import act, form_of, page
from pulsar_sidecar.web.words import command

_PENDING = f"{HERE}/pending"
_DEAD_LETTERS = f"{HERE}/dead-letters"
_KEEP_PENDING_SECONDS = 15.0
_KEEP_DEAD_LETTERS_SECONDS = 30.0

router = APIRouter()


@router.get(_PENDING)
async def pending(request: Request) -> Response:
    """Show records in order of publishing; brokers read them from topics, so a response is reused for a while."""
    offset = offset_of(request)
    reading = await read(request, f"{BASE}/pending", {"limit": PAGE_ROWS, "offset": offset}, _KEEP_PENDING_SECONDS)
    records = reading.parsed(list[PendingRecord]) or ()
    options = [f"--limit={PAGE_ROWS}", *([f"--offset={offset}"] if offset else ())]
    view = {
        "reading": reading,
        "rows": records,
        "first": _PENDING if offset else None,
        "following": f"{_PENDING}?offset={offset + PAGE_ROWS}" if len(records) == PAGE_ROWS else None,
        "command": command("ledger-deletion", "pending", *options),
    }
    return await page(request, "pending.html.j2", view=view, title="Pending ledgers")


@router.get(_DEAD_LETTERS)
async def dead_letters(request: Request) -> Response:
    """Show dead letters, oldest first; brokers read them from a topic, so a response is reused for half a minute."""
    after = request.query_params.get("after") or None
    parameters = {"limit": PAGE_ROWS, "after": after}
    reading = await read(request, f"{BASE}/dead-letters", parameters, _KEEP_DEAD_LETTERS_SECONDS)
    letters = reading.parsed(list[DeadLetter]) or []
    is_full = len(letters) == PAGE_ROWS
    view = {
        "reading": reading,
        "rows": [_row(letter) for letter in letters],
        "first": None if after is None else _DEAD_LETTERS,
        "following": f"{_DEAD_LETTERS}?{urlencode({'after': letters[-1].message_id})}" if is_full else None,
        "redrive": Action(
            "Redrive dead letters",
            f"{_DEAD_LETTERS}/redrive",
            command("ledger-deletion", "dlq", "redrive", "--limit", "NUMBER"),
            [ActionField("limit", "Maximum number, oldest first", "10000", "number", required=True)],
            note="They go back to the system topic with their retry counts reset; each ledger is checked again.",
        ),
    }
    return await page(request, "dead_letters.html.j2", view=view, title="Dead letters")


def _row(letter: DeadLetter) -> dict[str, object]:
    evidence, action = letter.raw, None
    if letter.record is not None:
        evidence = orjson.dumps(letter.record, option=orjson.OPT_INDENT_2).decode()
        ledger = str(letter.record["ledgerId"])
        line = command("ledger-deletion", "dlq", "redrive", ledger)
        action = Action("Redrive", f"{_DEAD_LETTERS}/redrive", line, hidden={"ledger": ledger})
    return {"letter": letter, "record": letter.record, "evidence": evidence, "redrive": action}


@router.post(f"{_DEAD_LETTERS}/redrive")
async def redrive(request: Request) -> Response:
    form = await form_of(request)
    body: dict[str, object] = {}
    if form.get("ledger"):
        body["ledgerIds"] = [ledger_id_of(form["ledger"])]
    if (limit := number_of(form.get("limit", ""), "the limit")) is not None:
        body["limit"] = int(limit) if limit.is_integer() else limit
    return await act(
        request, "POST", f"{BASE}/dead-letters/redrive", body, back=_DEAD_LETTERS, done=_redriven, kind=RedriveResult
    )


def _redriven(done: RedriveResult) -> str:
    return f"{format_count(done.redriven, 'dead letter')} sent back, {done.left:,} left."
