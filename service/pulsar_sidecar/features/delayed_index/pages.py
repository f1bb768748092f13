"""Pages of delayed messages: due times by topic and subscription, buckets and their health. Times in milliseconds."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request
from starlette.responses import Response

from pulsar_sidecar.features.delayed_index.results.inspection import Calendar, DueCounts, IndexView, Tracker
from pulsar_sidecar.features.delayed_index.results.maintenance import CheckReport
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.reports.formatting import format_age, format_count, format_minute
from pulsar_sidecar.reports.pages import PlotItem
from pulsar_sidecar.web import ask
from pulsar_sidecar.web.actions import Action, ActionField
from pulsar_sidecar.web.filters import PAGE_ROWS, Field, Pager, offset_of
from pulsar_sidecar.web.overview_parts import show_part
from pulsar_sidecar.web.scopes import Scope, is_system, scope_of, topic_of, topic_path
from pulsar_sidecar.web.shell import page
from pulsar_sidecar.web.words import command

PATH = "/ui/delayed"
TOPIC_PATH = f"{PATH}/topic"
_TITLE = "Delayed messages"
_KEEP_SECONDS = 30.0
"""Time to cache a response: counting reads bookies, and due times change slowly."""
_MOST_ENTRIES = 50_000
_SAMPLE = 200
_INDEXES = 20
"""Indexes per page; each has a table of its buckets."""

_WORST = ("bad", "warn", "good", "off")

router = APIRouter()


@dataclass(frozen=True, slots=True)
class CalendarView:
    """Due times of messages.

    Attributes:
        plot: columns, one for each of the calendar's times.
        late: longest time by which messages may be due later than shown; empty if none.
        places: subscriptions, unreadable ones first, then by descending number of delayed messages; those of system
            topics last.
        unknown: number of unreadable subscriptions.
    """

    calendar: Calendar
    plot: Sequence[PlotItem]
    step: str
    late: str
    places: Sequence[DueCounts]
    unknown: int


def calendar_view(calendar: Calendar) -> CalendarView:
    """Return the view of a calendar."""
    plot = [
        PlotItem(_without_year(time.from_ms), time.messages, format_count(time.messages, "message"))
        for time in calendar.times
    ]
    late = format_age(calendar.resolution_ms) if calendar.resolution_ms >= 1000 else ""
    unknown = sum(place.problem is not None for place in calendar.subscriptions)
    places = sorted(calendar.subscriptions, key=_urgency)
    return CalendarView(calendar, plot, format_age(1000 * calendar.step_seconds), late, places, unknown)


def _without_year(time_ms: int) -> str:
    """Return the time without its year, for which a column has no space."""
    text = format_minute(time_ms)
    return text[len("2026-") :] if text[4:5] == "-" else text


def _urgency(place: DueCounts) -> tuple[bool, bool, int, str, str]:
    return is_system(place.topic), place.problem is None, -place.delayed, place.topic, place.subscription


@router.get(PATH)
async def delayed_messages(request: Request) -> Response:
    scope = scope_of(request.query_params.get("scope", "").strip())
    reading, cancelling = await asyncio.gather(_calendar(request, scope), show_part(request, _TITLE))
    found = reading.parsed(Calendar)
    calendar = None if found is None else calendar_view(found)
    offset = offset_of(request)
    places = () if calendar is None else calendar.places
    view = {
        "scope": scope,
        "reading": reading,
        "cancelling": cancelling,
        "calendar": calendar,
        "fields": [Field("scope", "Tenant, tenant/namespace or topic", scope.text)],
        "pager": Pager.of(request, offset, PAGE_ROWS, len(places)),
        "rows": places[offset : offset + PAGE_ROWS],
        "command": command("delayed-index", "calendar", *filter(None, [scope.text])),
    }
    return await page(request, "delayed.html.j2", view=view, title=_TITLE)


async def _calendar(request: Request, scope: Scope) -> ask.Reading:
    return await ask.read(
        request, f"{scope.path}/delayedCalendar", {"limit": _MOST_ENTRIES}, keep_seconds=_KEEP_SECONDS
    )


# --- one topic -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Index:
    """Delayed index of one subscription of a partition.

    Attributes:
        kind: kind of its state, as in `shown.html.j2`; ``word`` is the state.
    """

    kind: str
    word: str
    answer: IndexView


def indexes_of(answer: Iterable[IndexView]) -> list[Index]:
    """Return the indexes, those with problems first."""
    return sorted((Index(*_state(each), each) for each in answer), key=lambda index: _WORST.index(index.kind))


def _state(index: IndexView) -> tuple[str, str]:
    if index.problem or index.buckets is None:
        return "bad", "could not be read"
    if Tracker.BROKEN in (index.running.tracker, index.next_load.tracker):
        return "bad", "would stop delivering"
    if any(bucket.problem for bucket in index.buckets):
        return "warn", "a bucket has a problem"
    return ("good", "all buckets readable") if index.buckets else ("off", "no buckets")


@router.get(TOPIC_PATH)
async def delayed_messages_of_topic(request: Request) -> Response:
    topic = topic_of(request.query_params.get("topic", ""))
    place = topic_path(topic)
    is_checked = request.query_params.get("check") == "yes"
    reading, index, check = await asyncio.gather(
        _calendar(request, Scope(str(topic), place, topic)),
        ask.read(request, f"{place}/delayedIndex", keep_seconds=_KEEP_SECONDS),
        _check(request, place) if is_checked else asyncio.sleep(0),
    )
    calendar = calendar_view(reading.answer(Calendar))
    indexes, offset = indexes_of(index.parsed(list[IndexView]) or ()), offset_of(request)
    view = {
        "topic": topic,
        "reading": reading,
        "calendar": calendar,
        "index": index,
        "indexes": indexes[offset : offset + _INDEXES],
        "pager": Pager.of(request, offset, _INDEXES, len(indexes)),
        "check": check,
        "checked": None if check is None else check.parsed(CheckReport),
        "actions": _actions(topic, request.query_params.get("message", "")),
        "commands": [command("delayed-index", "show", str(topic)), command("delayed-index", "fsck", str(topic))],
    }
    return await page(request, "delayed_topic.html.j2", view=view, title=_TITLE)


async def _check(request: Request, place: str) -> ask.Reading:
    return await ask.read(request, f"{place}/delayedIndex/fsck", {"sample": _SAMPLE}, keep_seconds=_KEEP_SECONDS)


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
