"""Subscriptions: acknowledgement holes, who is blocked or about to be; what deduplication keeps, and slow loads."""

import asyncio
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import Response

from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.web import ask
from pulsar_sidecar.web.filters import PAGE_ROWS, Field, Pager, offset_of
from pulsar_sidecar.web.pages import subscription_views as views
from pulsar_sidecar.web.scopes import Scope, scope_of, topic_of, topic_path
from pulsar_sidecar.web.shell import page
from pulsar_sidecar.web.words import command

PATH = "/ui/subscriptions"
TOPIC_PATH = f"{PATH}/topic"
_TITLE = "Subscriptions"
_KEEP_SECONDS = 15.0
_KEEP_DEDUPLICATION_SECONDS = 60.0
"""Every topic's snapshot is read, and brokers are asked for policies."""
_MOST_STUCK = 20

router = APIRouter()


@dataclass(frozen=True, slots=True)
class _View:
    scope: Scope
    reading: ask.Reading
    rows: list[views.SubscriptionRow]
    fields: list[Field]
    pager: Pager
    deduplication: views.Deduplication
    commands: list[str]


@router.get(PATH)
async def subscriptions(request: Request) -> Response:
    given = {name: value.strip() for name, value in request.query_params.items()}
    scope, show, contains = scope_of(given.get("scope", "")), given.get("show", ""), given.get("contains", "")
    offset = offset_of(request)
    parameters = views.parameters_of(show, contains) | {"offset": offset, "limit": PAGE_ROWS}
    reading, deduplication = await asyncio.gather(
        ask.read(request, f"{scope.path}/storedAckStates", parameters, keep_seconds=_KEEP_SECONDS),
        _deduplication(request, scope),
    )
    answer = reading.value or {"found": 0, "states": []}
    options = [f"--contains={contains}"] if contains else []
    options += ["--holes"] if show == "holes" else []
    options += [f"--offset={offset}"] if offset else []
    view = _View(
        scope,
        reading,
        views.rows_of(answer),
        [
            Field("scope", "Tenant, tenant/namespace or topic", scope.text),
            Field("show", "Show", show, views.CHOICES),
            Field("contains", "Name contains", contains),
        ],
        Pager.of(request, offset, PAGE_ROWS, answer["found"]),
        deduplication,
        [command("subscriptions", "fullest", *filter(None, [scope.text]), *options)],
    )
    return await page(request, "subscriptions.html.j2", view=view, title=_TITLE)


async def _deduplication(request: Request, scope: Scope) -> views.Deduplication:
    if scope.topic is not None or scope.is_tenant:
        return views.Deduplication()
    stuck, loads = await asyncio.gather(
        ask.read(
            request,
            f"{scope.path}/deduplication/stuck",
            {"most": _MOST_STUCK},
            keep_seconds=_KEEP_DEDUPLICATION_SECONDS,
        ),
        ask.read(request, f"{scope.path}/deduplication/forecast", keep_seconds=_KEEP_DEDUPLICATION_SECONDS),
    )
    return views.Deduplication(stuck, loads)


# --- one topic -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _TopicView:
    topic: TopicName
    address: str
    stored: ask.Reading
    rows: list[views.SubscriptionRow]
    pager: Pager
    memory: ask.Reading | None
    states: list[Any]
    deduplication: ask.Reading
    commands: list[str]


@router.get(TOPIC_PATH)
async def subscriptions_of_topic(request: Request) -> Response:
    """As stored; what the broker holds in memory only if ``ask`` is ``broker``, because that loads the topic."""
    topic = topic_of(request.query_params.get("topic", ""))
    place, offset = topic_path(topic), offset_of(request)
    asks = request.query_params.get("ask") == "broker"
    stored, memory, deduplication = await asyncio.gather(
        ask.read(
            request,
            f"{place}/storedAckStates",
            {"offset": offset, "limit": PAGE_ROWS},
            keep_seconds=_KEEP_SECONDS,
        ),
        _memory(request, place) if asks else _nothing(),
        ask.read(request, f"{place}/deduplication", keep_seconds=_KEEP_SECONDS),
    )
    stored.required()
    view = _TopicView(
        topic,
        f"{TOPIC_PATH}?{urlencode({'topic': str(topic)})}",
        stored,
        views.rows_of(stored.value),
        Pager.of(request, offset, PAGE_ROWS, stored.value["found"]),
        memory,
        list((memory.value if memory else None) or ()),
        deduplication,
        [
            command("subscriptions", "ack-state", str(topic)),
            command("deduplication", "show", str(topic)),
        ],
    )
    return await page(request, "subscriptions_topic.html.j2", view=view, title=_TITLE)


async def _memory(request: Request, place: str) -> ask.Reading | None:
    return await ask.read(request, f"{place}/ackState", {"ranges": 3, "stretches": 60})


async def _nothing() -> ask.Reading | None:
    return None
