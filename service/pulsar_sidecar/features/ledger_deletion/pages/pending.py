"""Pending-ledgers page: records that wait for deletion, with age, number of tries and reason."""

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request
from starlette.responses import Response

from pulsar_sidecar.features.ledger_deletion.pages.deletions import BASE, HERE
from pulsar_sidecar.features.ledger_deletion.results import PendingRecord, RecordedLedger, recorded_ledger
from pulsar_sidecar.web.ask import Reading, read
from pulsar_sidecar.web.filters import PAGE_ROWS, offset_of
from pulsar_sidecar.web.shell import page
from pulsar_sidecar.web.words import command

LIST = f"{HERE}/pending"
_KEEP_SECONDS = 15.0

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Pending:
    """A page of the list: records, each with the ledger that it names; ``following`` is None on the last page."""

    reading: Reading
    rows: Sequence[tuple[PendingRecord, RecordedLedger | None]]
    first: str | None
    following: str | None
    command: str


@router.get(LIST)
async def pending(request: Request) -> Response:
    """Show records in order of publishing; brokers read them from topics, so an answer is reused for a while."""
    offset = offset_of(request)
    reading = await read(request, f"{BASE}/pending", {"limit": PAGE_ROWS, "offset": offset}, _KEEP_SECONDS)
    return await page(request, "pending.html.j2", view=view_of(reading, offset), title="Pending ledgers")


def view_of(reading: Reading, offset: int) -> Pending:
    """Return the page of this answer."""
    rows = [(each, recorded_ledger(each.record)) for each in reading.parsed(list[PendingRecord]) or ()]
    following = f"{LIST}?offset={offset + PAGE_ROWS}" if len(rows) == PAGE_ROWS else None
    options = [f"--limit={PAGE_ROWS}", *([f"--offset={offset}"] if offset else ())]
    return Pending(reading, rows, LIST if offset else None, following, command("ledger-deletion", "pending", *options))
