"""Pages that cancel, expedite and reschedule delayed messages; the page of a topic has their forms."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import Response

from pulsar_sidecar.features.delayed_messages.results import CancelStatus, MessageOutcome, Preview, RescheduleResult
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.reports.formatting import format_count
from pulsar_sidecar.web import ask
from pulsar_sidecar.web.actions import Action
from pulsar_sidecar.web.overview_parts import Figure, OverviewPart, Shown
from pulsar_sidecar.web.scopes import topic_of, topic_path
from pulsar_sidecar.web.shell import act, form_of, page
from pulsar_sidecar.web.words import command, recent_error

_PATH = "/ui/delayed"
_TOPIC_PATH = f"{_PATH}/topic"

router = APIRouter()


def _address(topic: TopicName) -> str:
    return f"{_TOPIC_PATH}?{urlencode({'topic': str(topic)})}"


@router.post(f"{_TOPIC_PATH}/preview")
async def preview(request: Request) -> Response:
    """Show what would be cancelled, with the form that confirms its hash; nothing is changed."""
    form = await form_of(request)
    topic = topic_of(form.get("topic", ""))
    body, same_command = selection_of(topic, form)
    path = f"{topic_path(topic)}/delayedMessages/preview"
    found = await ask.changed(request, Preview, "POST", path, body)
    action = Action(
        f"Cancel these {format_count(found.count, 'message')}",
        f"{_TOPIC_PATH}/cancel",
        same_command,
        hidden={"topic": str(topic), "hash": found.hash, "selection": json.dumps(found.selection, ensure_ascii=False)},
        danger=True,
        note=f"Exactly what was previewed, or nothing: its hash is {found.hash[:16]}...",
        takes="any",
    )
    view = {"topic": topic, "address": _address(topic), "preview": found, "action": action}
    return await page(request, "delayed_preview.html.j2", view=view, title="What would be cancelled")


@router.post(f"{_TOPIC_PATH}/cancel")
async def cancel(request: Request) -> Response:
    form = await form_of(request)
    topic = topic_of(form.get("topic", ""))
    return await act(
        request,
        "POST",
        f"{topic_path(topic)}/delayedMessages/cancel",
        confirmed_selection(form),
        back=_address(topic),
        done=cancelled_words,
        kind=list[MessageOutcome],
    )


@router.post(f"{_TOPIC_PATH}/expedite")
async def expedite(request: Request) -> Response:
    form = await form_of(request)
    form.pop("due", None)
    return await _reissue(request, form)


@router.post(f"{_TOPIC_PATH}/reschedule")
async def reschedule(request: Request) -> Response:
    form = await form_of(request)
    if not form.get("due"):
        raise InvalidInputError("the new due time is missing")
    return await _reissue(request, form)


async def _reissue(request: Request, form: dict[str, str]) -> Response:
    topic, (verb, body) = topic_of(form.get("topic", "")), reissue_of(form)
    return await act(
        request,
        "POST",
        f"{topic_path(topic)}/{verb}",
        body,
        back=_address(topic),
        done=reissued_words,
        kind=RescheduleResult,
    )


# --- forms and responses ---------------------------------------------------------------------------------------------


def selection_of(topic: TopicName, form: Mapping[str, str]) -> tuple[Mapping[str, object], str]:
    """Return the request's body for a form that selects messages, and the command with the same selection.

    Raises:
        InvalidInputError: one of them cannot be read.
    """
    body: dict[str, object] = {}
    words = ["topics", "cancel-delayed-messages", str(topic)]
    for field, name in (("due_from", "dueFrom"), ("due_to", "dueTo")):
        if text := form.get(field):
            body[name] = utc_ms(text)
            words += [f"--{field.replace('_', '-')}", str(body[name])]
    if key := form.get("key"):
        body["key"] = key
        words += ["--key", key]
    if text := form.get("property"):
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InvalidInputError("write a property as NAME=VALUE")
        body["properties"] = {name: value}
        words += ["--property", text]
    if names := [name.strip() for name in form.get("subscriptions", "").split(",") if name.strip()]:
        body["subscriptionNames"] = names
        words += ["--subscription-names", ",".join(names)]
    return body, command(*words)


def confirmed_selection(form: Mapping[str, str]) -> Mapping[str, object]:
    """Return the selection that a preview's form sends back, with the hash that was shown."""
    try:
        selection = json.loads(form.get("selection", ""))
    except (ValueError, RecursionError):
        selection = None
    if not isinstance(selection, dict) or not form.get("hash"):
        raise InvalidInputError("the form names no preview; preview the selection again")
    return {**selection, "hash": form["hash"]}


def cancelled_words(outcomes: Sequence[MessageOutcome]) -> tuple[str, str]:
    """Return the kind of message and a sentence for the result of a cancellation."""
    done = sum(outcome.cancelled for outcome in outcomes)
    reasons = (one.reason for outcome in outcomes if not outcome.cancelled for one in outcome.verdicts)
    why = next(filter(None, reasons), None)
    words = f"cancelled {done:,} of {format_count(len(outcomes), 'message')}" + (
        f"; the others not: {why}" if why else ""
    )
    return "good" if done == len(outcomes) else "warn", words


def reissue_of(form: Mapping[str, str]) -> tuple[str, Mapping[str, int]]:
    """Return the last segment of the route, and the request's body, for a form that publishes a message again.

    Raises:
        InvalidInputError: one of them cannot be read.
    """
    ledger, _, entry = form.get("message", "").partition(":")
    if not all(number.isascii() and number.isdigit() and len(number) < 20 for number in (ledger, entry)):
        raise InvalidInputError("write the message as ledgerId:entryId, such as 4711:0")
    body = {"ledgerId": int(ledger), "entryId": int(entry)}
    if "due" not in form:
        return "expediteDelayedMessage", body
    return "rescheduleDelayedMessage", body | {"newDeliverAt": utc_ms(form["due"])}


def reissued_words(found: RescheduleResult) -> tuple[str, str]:
    """Return the kind of message and a sentence for the result of publishing again."""
    outcome = found.outcome
    if found.message_id is None:
        reasons = [verdict.reason or verdict.proof.value for verdict in outcome.verdicts]
        return "bad", f"the sidecar knows of no copy: {'; '.join(reasons) or 'the message was not found'}"
    old = "the original is cancelled" if outcome.cancelled else "the original is not cancelled everywhere"
    return "good" if outcome.cancelled else "warn", f"published again as {found.message_id}; {old}"


def utc_ms(text: str) -> int:
    """Parse a time of a form, in UTC; raises `InvalidInputError` if it is malformed."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInputError(f"{text[:60]!r} is not a time; write it as 2026-12-24T18:00, in UTC") from None
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(zoned.timestamp() * 1000)


def _overview(reading: ask.Reading) -> Shown:
    status = reading.parsed(CancelStatus)
    if status is None:
        return Shown()
    if status.enabled:
        figure = Figure("Open cancellations", f"{status.open_cancellations:,}", _PATH)
    else:
        figure = Figure("Cancelling", "off", _PATH, "off", "delayedMessageCancellingEnabled is false")
    return Shown(list(recent_error(status, reading.as_of_ms, "Delayed messages", _PATH)), [figure])


OVERVIEW = OverviewPart("Delayed messages", "/admin/v2/delayed-delivery/status", _overview)
