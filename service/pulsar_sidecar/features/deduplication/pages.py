"""Pages of deduplication: stuck cursors and slow topic loads of a namespace or of everything; one topic's state."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request
from starlette.responses import Response

from pulsar_sidecar.features.deduplication.results import DeduplicationView, LoadForecasts, StuckReport
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.web import ask
from pulsar_sidecar.web.filters import Field
from pulsar_sidecar.web.scopes import Scope, scope_of, topic_path
from pulsar_sidecar.web.shell import page
from pulsar_sidecar.web.words import command

PATH = "/ui/deduplication"
_TITLE = "Deduplication"
_KEEP_SECONDS = 60.0
"""Time to cache responses, in seconds: each one reads every topic's snapshot, and brokers' policies."""
_KEEP_TOPIC_SECONDS = 15.0
_MOST_STUCK = 20

router = APIRouter()


@dataclass(frozen=True, slots=True)
class _View:
    scope: Scope
    fields: Sequence[Field]
    stuck: ask.Reading
    loads: ask.Reading
    commands: Sequence[str]

    @property
    def report(self) -> StuckReport | None:
        return self.stuck.parsed(StuckReport)

    @property
    def forecasts(self) -> LoadForecasts | None:
        return self.loads.parsed(LoadForecasts)


@dataclass(frozen=True, slots=True)
class _TopicView:
    topic: TopicName
    fields: Sequence[Field]
    reading: ask.Reading
    states: Sequence[DeduplicationView]
    commands: Sequence[str]


@router.get(PATH)
async def deduplication(request: Request) -> Response:
    scope = scope_of(request.query_params.get("scope", "").strip())
    fields = [Field("scope", "Namespace or topic", scope.text)]
    if scope.topic is not None:
        return await _of_topic(request, scope.topic, fields)
    if scope.is_tenant:
        raise InvalidInputError(
            f"{scope.text[:100]!r} is a tenant; write one of its namespaces, or a topic's full name"
        )
    place = f"{scope.path}/deduplication"
    stuck, loads = await asyncio.gather(
        ask.read(request, f"{place}/stuck", {"most": _MOST_STUCK}, keep_seconds=_KEEP_SECONDS),
        ask.read(request, f"{place}/forecast", keep_seconds=_KEEP_SECONDS),
    )
    commands = [command("deduplication", verb, *filter(None, [scope.text])) for verb in ("stuck", "forecast")]
    view = _View(scope, fields, stuck, loads, commands)
    return await page(request, "deduplication.html.j2", view=view, title=_TITLE)


async def _of_topic(request: Request, topic: TopicName, fields: Sequence[Field]) -> Response:
    reading = await ask.read(request, f"{topic_path(topic)}/deduplication", keep_seconds=_KEEP_TOPIC_SECONDS)
    states = reading.answer(list[DeduplicationView])
    view = _TopicView(topic, fields, reading, states, [command("deduplication", "show", str(topic))])
    return await page(request, "deduplication_topic.html.j2", view=view, title=_TITLE)
