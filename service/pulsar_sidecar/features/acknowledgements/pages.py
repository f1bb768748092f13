"""Subscriptions: acknowledgement holes, and (nearly) paused dispatch."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from fastapi import APIRouter, Request
from starlette.responses import Response

from pulsar_sidecar.features.acknowledgements.results import AckState, Fullness, StoredAckState, StoredAckStates
from pulsar_sidecar.reports.formatting import format_count
from pulsar_sidecar.web import ask
from pulsar_sidecar.web.filters import PAGE_ROWS, Field, Pager, offset_of
from pulsar_sidecar.web.scopes import scope_of, topic_of, topic_path
from pulsar_sidecar.web.shell import page
from pulsar_sidecar.web.strips import Strip, bars
from pulsar_sidecar.web.words import command

PATH = "/ui/subscriptions"
TOPIC_PATH = f"{PATH}/topic"
_TITLE = "Subscriptions"
_KEEP_SECONDS = 15.0
_LEAST_SEEN = 8
_CHOICES: Final = (("holes", "with holes"), ("nearly full", "nearly full"), ("full", "full"))
_STATES: Final = {
    (Fullness.FULL, True): ("bad", "full: dispatch pauses"),
    (Fullness.FULL, False): ("bad", "full: acknowledgements are lost"),
    (Fullness.NEARLY_FULL, True): ("warn", "nearly full: dispatch will pause"),
    (Fullness.NEARLY_FULL, False): ("warn", "nearly full"),
    (Fullness.FITS, True): ("good", "fits"),
    (Fullness.FITS, False): ("good", "fits"),
}
"""Kind of state, as `shown.html.j2` has them, and the word for it."""

router = APIRouter()


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    """One subscription, as stored, and the number of ranges that the broker stores at most."""

    state: StoredAckState
    limit: int
    kind: str
    word: str

    @classmethod
    def of(cls, state: StoredAckState, limit: int) -> Self:
        return cls(state, limit, *_STATES[state.fullness, state.pause_enabled])

    @property
    def topic(self) -> str:
        return self.state.topic

    @property
    def left(self) -> int:
        """Number of ranges that can be added."""
        return max(0, self.limit - self.state.ranges)

    @property
    def strip(self) -> Strip:
        return strip_of(self.state.stretches, self.state.acknowledged, self.state.entries)


def strip_of(percentages: Sequence[int], acknowledged: int, entries: int) -> Strip:
    """Draw the entries beyond the mark-delete position, by percentages of stretches of the same length.

    The height of a bar is the acknowledged part; any part above zero is visible.
    """
    beyond = format_count(entries, "entry")
    text = f"{acknowledged:,} of {beyond} beyond the position are acknowledged" if entries else "nothing beyond"
    seen = ((number, 1, max(_LEAST_SEEN, share)) for number, share in enumerate(percentages) if share)
    return Strip(text, bars(seen), max(1, len(percentages)))


@dataclass(frozen=True, slots=True)
class _StatesPage:
    reading: ask.Reading
    found: StoredAckStates | None
    rows: Sequence[SubscriptionRow]
    pager: Pager


async def _stored(request: Request, place: str, **filters: str | bool | None) -> _StatesPage:
    offset = offset_of(request)
    parameters = {**filters, "offset": offset, "limit": PAGE_ROWS}
    reading = await ask.read(request, f"{place}/storedAckStates", parameters, keep_seconds=_KEEP_SECONDS)
    found = reading.parsed(StoredAckStates)
    rows = [SubscriptionRow.of(state, found.max_unacked_ranges_to_persist) for state in found.states] if found else []
    return _StatesPage(reading, found, rows, Pager.of(request, offset, PAGE_ROWS, found.found if found else 0))


@router.get(PATH)
async def subscriptions(request: Request) -> Response:
    given = {name: value.strip() for name, value in request.query_params.items()}
    scope, show, contains = scope_of(given.get("scope", "")), given.get("show", ""), given.get("contains", "")
    offset = offset_of(request)
    stored = await _stored(
        request,
        scope.path,
        fullness=show if show in ("full", "nearly full") else None,
        holes=True if show == "holes" else None,
        contains=contains or None,
    )
    options = [f"--contains={contains}"] if contains else []
    options += ["--holes"] if show == "holes" else []
    options += [f"--offset={offset}"] if offset else []
    view = {
        "scope": scope,
        "stored": stored,
        "fields": [
            Field("scope", "Tenant, tenant/namespace or topic", scope.text),
            Field("show", "Show", show, _CHOICES),
            Field("contains", "Name contains", contains),
        ],
        "commands": [command("subscriptions", "fullest", *filter(None, [scope.text]), *options)],
    }
    return await page(request, "subscriptions.html.j2", view=view, title=_TITLE)


# --- one topic -----------------------------------------------------------------------------------------------------


@router.get(TOPIC_PATH)
async def subscriptions_of_topic(request: Request) -> Response:
    """Show the stored states, and those in the broker's memory if ``ask`` is ``broker``, which loads the topic."""
    topic = topic_of(request.query_params.get("topic", ""))
    place, asks = topic_path(topic), request.query_params.get("ask") == "broker"
    stored, memory = await asyncio.gather(
        _stored(request, place), _memory(request, place) if asks else asyncio.sleep(0)
    )
    stored.reading.required()
    states = memory.parsed(list[AckState]) if memory else None
    commands = [command("subscriptions", "ack-state", str(topic))]
    view = {"topic": topic, "stored": stored, "memory": memory, "states": states or (), "commands": commands}
    return await page(request, "subscriptions_topic.html.j2", view=view, title=_TITLE)


async def _memory(request: Request, place: str) -> ask.Reading | None:
    return await ask.read(request, f"{place}/ackState", {"ranges": 3, "stretches": 60})
