"""Delayed messages: what is due when, per topic and subscription; buckets and their health; cancelling a selection."""

import asyncio
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import Response

from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.web import ask
from pulsar_sidecar.web.actions import Action, ActionField
from pulsar_sidecar.web.filters import PAGE_ROWS, Field, Pager, offset_of
from pulsar_sidecar.web.pages import delayed_views as views
from pulsar_sidecar.web.scopes import Scope, scope_of, topic_of, topic_path
from pulsar_sidecar.web.shell import act, form_of, page
from pulsar_sidecar.web.words import command

PATH = "/ui/delayed"
TOPIC_PATH = f"{PATH}/topic"
_TITLE = "Delayed messages"
_KEEP_SECONDS = 30.0
"""Counting reads bookies; due times change slowly."""
_MOST_ENTRIES = 50_000
_SAMPLE = 200
_INDEXES = 20
"""On a page: each has a table of its buckets."""

router = APIRouter()


@dataclass(frozen=True, slots=True)
class _Overview:
    scope: Scope
    reading: ask.Reading
    cancelling: ask.Reading
    calendar: views.Calendar | None
    fields: list[Field]
    pager: Pager | None
    rows: Any
    command: str


@router.get(PATH)
async def delayed_messages(request: Request) -> Response:
    scope = scope_of(request.query_params.get("scope", "").strip())
    reading, cancelling = await asyncio.gather(
        _calendar(request, scope), ask.read(request, "/admin/v2/delayed-delivery/status")
    )
    calendar = None if reading.value is None else views.calendar_of(reading.value)
    offset = offset_of(request)
    places = () if calendar is None else calendar.places
    view = _Overview(
        scope,
        reading,
        cancelling,
        calendar,
        [Field("scope", "Tenant, tenant/namespace or topic", scope.text)],
        Pager.of(request, offset, PAGE_ROWS, len(places)),
        places[offset : offset + PAGE_ROWS],
        command("delayed-index", "calendar", *filter(None, [scope.text])),
    )
    return await page(request, "delayed.html.j2", view=view, title=_TITLE)


def _calendar(request: Request, scope: Scope) -> Any:
    return ask.read(request, f"{scope.path}/delayedCalendar", {"limit": _MOST_ENTRIES}, keep_seconds=_KEEP_SECONDS)


# --- one topic -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _TopicView:
    topic: TopicName
    address: str
    reading: ask.Reading
    calendar: views.Calendar | None
    index: ask.Reading
    indexes: list[views.Index]
    pager: Pager
    check: ask.Reading | None
    actions: list[Action]
    commands: list[str]


@router.get(TOPIC_PATH)
async def delayed_messages_of_topic(request: Request) -> Response:
    topic = topic_of(request.query_params.get("topic", ""))
    place = topic_path(topic)
    is_checked = request.query_params.get("check") == "yes"
    reading, index, check = await asyncio.gather(
        _calendar(request, Scope(str(topic), place, topic)),
        ask.read(request, f"{place}/delayedIndex", keep_seconds=_KEEP_SECONDS),
        _check(request, place) if is_checked else _nothing(),
    )
    reading.required()
    indexes, offset = views.indexes_of(index.value or ()), offset_of(request)
    view = _TopicView(
        topic,
        topic_address(topic),
        reading,
        views.calendar_of(reading.value),
        index,
        indexes[offset : offset + _INDEXES],
        Pager.of(request, offset, _INDEXES, len(indexes)),
        check,
        _actions(topic, request.query_params.get("message", "")),
        [command("delayed-index", "show", str(topic)), command("delayed-index", "fsck", str(topic))],
    )
    return await page(request, "delayed_topic.html.j2", view=view, title=_TITLE)


async def _check(request: Request, place: str) -> ask.Reading | None:
    return await ask.read(request, f"{place}/delayedIndex/fsck", {"sample": _SAMPLE}, keep_seconds=_KEEP_SECONDS)


async def _nothing() -> ask.Reading | None:
    return None


def topic_address(topic: TopicName, **more: str) -> str:
    """The page of a topic."""
    return f"{TOPIC_PATH}?{urlencode({'topic': str(topic), **more})}"


def _actions(topic: TopicName, message: str) -> list[Action]:
    name, id_field = str(topic), ActionField("message", "Message, ledgerId:entryId", message, required=True)
    due = ActionField("due", "New due time, UTC", kind="datetime-local", required=True)
    return [
        Action(
            "Preview a selection to cancel",
            f"{TOPIC_PATH}/preview",
            command("topics", "cancel-delayed-messages", name, "--due-from", "TIME", "--due-to", "TIME"),
            (
                ActionField("due_from", "Due from, UTC", kind="datetime-local", note="included"),
                ActionField("due_to", "Due to, UTC", kind="datetime-local", note="excluded"),
                ActionField("key", "Key"),
                ActionField("property", "Property, NAME=VALUE"),
                ActionField(
                    "subscriptions", "Subscriptions, with commas", note="empty: all that are Shared or Key_Shared"
                ),
            ),
            {"topic": name},
            note="Nothing is cancelled yet. The preview asks the topic's broker, which loads the topic.",
            takes="any",
        ),
        Action(
            "Expedite a message",
            f"{TOPIC_PATH}/expedite",
            command("topics", "expedite-delayed-message", name, "--ledger-id", "LEDGER", "--entry-id", "ENTRY"),
            (id_field,),
            {"topic": name},
            note="The sidecar publishes it again without a delay and cancels the old one.",
            takes="any",
        ),
        Action(
            "Reschedule a message",
            f"{TOPIC_PATH}/reschedule",
            command(
                "topics", "reschedule-delayed-message", name, "-l", "LEDGER", "-e", "ENTRY", "--new-deliver-at", "TIME"
            ),
            (id_field, due),
            {"topic": name},
            note="The sidecar publishes it again with the new due time and cancels the old one.",
            takes="any",
        ),
    ]


# --- acts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _PreviewView:
    topic: TopicName
    address: str
    preview: Any
    action: Action


@router.post(f"{TOPIC_PATH}/preview")
async def preview(request: Request) -> Response:
    """Shows what would be cancelled, with the form that confirms its hash; nothing is changed."""
    form = await form_of(request)
    topic = topic_of(form.get("topic", ""))
    selection = views.selection_of(topic, form)
    found = await ask.change(request, "POST", f"{topic_path(topic)}/delayedMessages/preview", selection.body)
    action = Action(
        f"Cancel these {format_count(found['count'], 'message')}",
        f"{TOPIC_PATH}/cancel",
        selection.command,
        hidden={"topic": str(topic), "hash": found["hash"], "selection": views.as_json(found["selection"])},
        danger=True,
        note=f"Exactly what was previewed, or nothing: its hash is {found['hash'][:16]}...",
        takes="any",
    )
    view = _PreviewView(topic, topic_address(topic), found, action)
    return await page(request, "delayed_preview.html.j2", view=view, title="What would be cancelled")


@router.post(f"{TOPIC_PATH}/cancel")
async def cancel(request: Request) -> Response:
    form = await form_of(request)
    topic = topic_of(form.get("topic", ""))
    return await act(
        request,
        "POST",
        f"{topic_path(topic)}/delayedMessages/cancel",
        views.confirmed_selection(form),
        back=topic_address(topic),
        done=views.cancelled_words,
    )


@router.post(f"{TOPIC_PATH}/expedite")
async def expedite(request: Request) -> Response:
    form = await form_of(request)
    form.pop("due", None)
    return await _reissue(request, form)


@router.post(f"{TOPIC_PATH}/reschedule")
async def reschedule(request: Request) -> Response:
    form = await form_of(request)
    if not form.get("due"):
        raise InvalidInputError("the new due time is missing")
    return await _reissue(request, form)


async def _reissue(request: Request, form: dict[str, str]) -> Response:
    topic, reissue = topic_of(form.get("topic", "")), views.reissue_of(form)
    return await act(
        request,
        "POST",
        f"{topic_path(topic)}/{reissue.verb}",
        reissue.body,
        back=topic_address(topic),
        done=views.reissued_words,
    )
