"""Page of a rehearsal: totals first, each with its source, then the topics with the most to do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from pulsar_sidecar.features.rehearsal.requests import broker_address
from pulsar_sidecar.features.rehearsal.results import Rehearsal
from pulsar_sidecar.web import ask, words
from pulsar_sidecar.web.ask import Reading
from pulsar_sidecar.web.filters import Field
from pulsar_sidecar.web.shell import page

PATH = "/ui/rehearsal"
_SECONDS: Final = 15
"""Less than a page's patience."""
_KEEP_SECONDS: Final = 10.0

router = APIRouter()


@dataclass(frozen=True, slots=True)
class RehearsalPage:
    """Page about one broker; without a broker only a form."""

    fields: Sequence[Field]
    command: str
    reading: Reading | None = None
    found: Rehearsal | None = None


@router.get(PATH)
async def rehearsal(request: Request) -> Response:
    """Show the consequences of the death of ``broker``, for an operator who is about to restart it."""
    named = request.query_params.get("broker", "").strip()
    broker = broker_address(named)
    fields = [Field("broker", "Broker (host:port of its web service)", named)]
    view = RehearsalPage(fields, words.command("rehearse", "broker", broker or "--help"))
    if broker:
        path = ask.path("/admin/v2/rehearsal/brokers", broker)
        reading = await ask.read(request, path, {"seconds": _SECONDS}, _KEEP_SECONDS)
        view = RehearsalPage(fields, view.command, reading, reading.parsed(Rehearsal))
    return await page(request, "rehearsal.html.j2", view=view, title="Before a restart")
