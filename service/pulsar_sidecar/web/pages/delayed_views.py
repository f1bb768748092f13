"""What the pages of delayed messages show, computed from the REST door's answers. Pure; times in milliseconds."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pulsar_sidecar.analysis.formatting import format_age, format_count, format_minute
from pulsar_sidecar.analysis.pages import PlotItem
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.web.scopes import is_system
from pulsar_sidecar.web.words import command

_WORST = ("bad", "warn", "good", "off")


@dataclass(frozen=True, slots=True)
class Calendar:
    """When messages are due.

    Attributes:
        plot: one column for each of ``times``.
        times: beginnings of steps and their messages.
        late: how much later messages may be due than shown; empty if not at all.
        places: subscriptions, those of system topics last; those that could not be read first, then those with most
            delayed messages.
        unknown: how many of them could not be read.
    """

    counts: Mapping[str, int]
    plot: Sequence[PlotItem]
    times: Sequence[Mapping[str, int]]
    step: str
    late: str
    places: Sequence[Mapping[str, Any]]
    unknown: int


def calendar_of(answer: Mapping[str, Any]) -> Calendar:
    """Of the answer of ``delayedCalendar``."""
    counts = {
        name: int(answer[name]) for name in ("delayed", "due", "undelayed", "unreadable", "unread", "fromBuckets")
    }
    plot = [
        PlotItem(_without_year(time["fromMs"]), time["messages"], format_count(time["messages"], "message"))
        for time in answer["times"]
    ]
    late = format_age(answer["resolutionMs"]) if answer["resolutionMs"] >= 1000 else ""
    places = sorted(answer["subscriptions"], key=_urgency)
    unknown = sum(place["problem"] is not None for place in places)
    return Calendar(counts, plot, answer["times"], format_age(1000 * answer["stepSeconds"]), late, places, unknown)


def _without_year(time_ms: int) -> str:
    """There is no room for it below a column."""
    text = format_minute(time_ms)
    return text[len("2026-") :] if text[4:5] == "-" else text


def _urgency(place: Mapping[str, Any]) -> tuple[bool, bool, int, str, str]:
    return is_system(place["topic"]), place["problem"] is None, -place["delayed"], place["topic"], place["subscription"]


# --- one topic -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Index:
    """The delayed index of one subscription of a partition.

    Attributes:
        kind: of its state, as `shown.html.j2` has them; ``word`` is the state.
    """

    kind: str
    word: str
    answer: Mapping[str, Any]


def indexes_of(answer: Iterable[Mapping[str, Any]]) -> list[Index]:
    """Of the answer of ``delayedIndex``, those with problems first."""
    return sorted((Index(*_state(each), each) for each in answer), key=lambda index: _WORST.index(index.kind))


def _state(index: Mapping[str, Any]) -> tuple[str, str]:
    buckets = index["buckets"]
    if index["problem"] or buckets is None:
        return "bad", "could not be read"
    if "broken" in (index["running"]["tracker"], index["nextLoad"]["tracker"]):
        return "bad", "would stop delivering"
    if any(bucket["problem"] for bucket in buckets):
        return "warn", "a bucket has a problem"
    return ("good", "all buckets readable") if buckets else ("off", "no buckets")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages a form selects.

    Attributes:
        body: what the REST door takes.
        command: the command that selects the same.
    """

    body: Mapping[str, Any]
    command: str


def selection_of(topic: TopicName, form: Mapping[str, str]) -> Selection:
    """Of a form with ``due_from``, ``due_to``, ``key``, ``property`` and ``subscriptions``.

    Raises:
        InvalidInputError: one of them cannot be read.
    """
    body: dict[str, Any] = {}
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
    return Selection(body, command(*words))


def confirmed_selection(form: Mapping[str, str]) -> Mapping[str, Any]:
    """The selection that a preview's form sends back, with the hash that was shown."""
    try:
        selection = json.loads(form.get("selection", ""))
    except (ValueError, RecursionError):
        selection = None
    if not isinstance(selection, dict) or not form.get("hash"):
        raise InvalidInputError("the form names no preview; preview the selection again")
    return {**selection, "hash": form["hash"]}


def as_json(value: object) -> str:
    """For a form that sends it back."""
    return json.dumps(value, ensure_ascii=False)


def cancelled_words(verdicts: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """How a cancellation ended: the kind of message, and one sentence."""
    done = sum(bool(verdict["cancelled"]) for verdict in verdicts)
    reasons = (one["reason"] for verdict in verdicts if not verdict["cancelled"] for one in verdict["verdicts"])
    why = next((reason for reason in reasons if reason), "")
    words = f"cancelled {done:,} of {format_count(len(verdicts), 'message')}" + (
        f"; the others not: {why}" if why else ""
    )
    return "good" if done == len(verdicts) else "warn", words


@dataclass(frozen=True, slots=True)
class Reissue:
    """A message to publish again.

    Attributes:
        verb: the route.
        body: what it takes.
    """

    verb: str
    body: Mapping[str, int]


def reissue_of(form: Mapping[str, str]) -> Reissue:
    """Of a form with ``message`` (``ledgerId:entryId``) and, for another due time, ``due``.

    Raises:
        InvalidInputError: one of them cannot be read.
    """
    ledger, _, entry = form.get("message", "").partition(":")
    if not all(number.isascii() and number.isdigit() and len(number) < 20 for number in (ledger, entry)):
        raise InvalidInputError("write the message as ledgerId:entryId, such as 4711:0")
    body = {"ledgerId": int(ledger), "entryId": int(entry)}
    if "due" not in form:
        return Reissue("expediteDelayedMessage", body)
    return Reissue("rescheduleDelayedMessage", body | {"newDeliverAt": utc_ms(form["due"])})


def reissued_words(answer: Mapping[str, Any]) -> tuple[str, str]:
    """How publishing again ended: the kind of message, and one sentence."""
    outcome = answer["outcome"]
    if answer["messageId"] is None:
        reasons = [verdict["reason"] or verdict["proof"] for verdict in outcome["verdicts"]]
        return "bad", f"the sidecar knows of no copy: {'; '.join(reasons) or 'the message was not found'}"
    old = "the old message is cancelled" if outcome["cancelled"] else "the old message is not cancelled everywhere"
    return "good" if outcome["cancelled"] else "warn", f"published again as {answer['messageId']}; {old}"


def utc_ms(text: str) -> int:
    """A time of a form, which is in UTC; `InvalidInputError` if it is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInputError(f"{text[:60]!r} is not a time; write it as 2026-12-24T18:00, in UTC") from None
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(zoned.timestamp() * 1000)
