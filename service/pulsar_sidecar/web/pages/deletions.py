"""Deletions: what is in flight, how old, how fast, and held back by what; where topics and namespaces stand."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from pulsar_sidecar.analysis.formatting import format_age, format_bytes, format_count, format_minute
from pulsar_sidecar.analysis.pages import PlotItem
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import parse_ledger_id
from pulsar_sidecar.web.actions import Action, ActionField
from pulsar_sidecar.web.ask import Reading, path, read
from pulsar_sidecar.web.filters import PAGE_ROWS, Field, Pager, offset_of
from pulsar_sidecar.web.forms import confirmed
from pulsar_sidecar.web.shell import act, form_of, page
from pulsar_sidecar.web.words import command, last_error, pause_words

HERE = "/ui/deletions"
TOPIC = f"{HERE}/topic"
BASE = "/admin/v2/ledger-deletion"
STATES = {"running": "busy", "stuck": "bad", "unreadable": "bad", "done": "good", "refused": "warn", "abandoned": "off"}

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Hindrance:
    """What holds deletions back; ``kind`` as in the macro ``state``."""

    kind: str
    word: str
    text: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of the page."""

    label: str
    text: str
    kind: str | None = None
    note: str | None = None
    href: str | None = None


@dataclass(frozen=True, slots=True)
class Deletions:
    """The page; ``topics`` are those of this page of the list."""

    status: Reading
    topics_read: Reading
    namespaces_read: Reading
    figures: Sequence[Figure]
    plots: Sequence[tuple[str, Sequence[PlotItem]]]
    hindrances: Sequence[Hindrance]
    controls: Sequence[Action]
    topics: Sequence[Any]
    pager: Pager
    filters: Sequence[Field]
    filtered: bool
    namespaces: Sequence[Any]
    protected: Sequence[tuple[Any, Action]]
    states: dict[str, str]


@dataclass(frozen=True, slots=True)
class Followed:
    """One topic deletion."""

    deletion: Any
    reading: Reading
    abandon: Action | None
    states: dict[str, str]


@router.get(HERE)
async def deletions(request: Request) -> Response:
    """Everything about deletions but the dead letters."""
    names = ("status", "topic-deletions", "namespace-deletions", "trend")
    readings = await asyncio.gather(*(read(request, f"{BASE}/{name}") for name in names))
    return await page(request, "deletions.html.j2", view=view_of(request, *readings), title="Deletions")


def view_of(request: Request, status: Reading, topics: Reading, namespaces: Reading, trend: Reading) -> Deletions:
    """The page of these answers."""
    state, name = request.query_params.get("state", ""), request.query_params.get("topic", "")
    matching = [each for each in topics.value or () if _matches(each, state, name)]
    offset = offset_of(request)
    return Deletions(
        status=status,
        topics_read=topics,
        namespaces_read=namespaces,
        figures=list(figures(status.value, trend.value)),
        plots=plots_of(trend.value),
        hindrances=list(hindrances(status)),
        controls=controls(status.value),
        topics=matching[offset : offset + PAGE_ROWS],
        pager=Pager.of(request, offset, PAGE_ROWS, len(matching)),
        filters=(
            Field("topic", "Topic contains", name),
            Field("state", "State", state, [(each, each) for each in ("running", "stuck", "unreadable")]),
        ),
        filtered=bool(state or name),
        namespaces=namespaces.value or (),
        protected=[
            (each, ending_protection(each["ledgerId"])) for each in (status.value or {}).get("protectedLedgers", ())
        ],
        states=STATES,
    )


def _matches(deletion: Any, state: str, name: str) -> bool:
    return (not state or deletion["state"] == state) and (not name or name in (deletion["topic"] or ""))


def plots_of(trend: Any) -> list[tuple[str, Sequence[PlotItem]]]:
    """The last hour as captions and lines; a line needs two points."""
    points = trend["points"] if trend else ()
    captions = {"pending": "Pending ledgers", "deletedPerSecond": "Deleted per second by this sidecar"}
    lines = [(caption, line_of(points, name)) for name, caption in captions.items()]
    return [(caption, line) for caption, line in lines if len(line) > 1]


def line_of(points: Sequence[Any], name: str) -> list[PlotItem]:
    """One figure of the last hour, where it is known."""
    known = [(each["atMs"], each[name]) for each in points if each[name] is not None]
    return [PlotItem(f"{format_minute(at)} UTC", value, f"{round(value, 1):,}") for at, value in known]


def figures(status: Any, trend: Any = None) -> Iterator[Figure]:
    """What is in flight, how old and how fast."""
    if status is None:
        return
    inflight, limit, speed = status["inflight"], status["adaptiveLimit"], status["deletedPerSecond"]
    if inflight is None:
        yield Figure("Pending ledgers", "unknown", "bad", "brokers do not report it")
    else:
        oldest = inflight["oldestAgeMs"]
        yield Figure(
            "Pending ledgers", f"{inflight['count']:,}", "busy" if inflight["count"] else "good", href=f"{HERE}/pending"
        )
        yield Figure("Oldest", "none" if oldest is None else format_age(oldest))
        size = inflight["waitingBytes"]
        yield Figure(
            "Size of pending ledgers", format_bytes(size), note="estimated from recent ledgers" if size else None
        )
        if inflight["count"]:
            yield _time_left(trend, is_paused=status["control"]["paused"])
    yield Figure("Deleted per second", "unknown" if speed is None else f"{speed:,.1f}", None, "by this sidecar, now")
    letters = status["deadLetters"]
    kind = "bad" if letters else "good" if letters == 0 else None
    yield Figure("Dead letters", "unknown" if letters is None else f"{letters:,}", kind, None, f"{HERE}/dead-letters")
    if limit is not None:
        note = f"latency {_milliseconds(limit['recentP99Ms'])}, idle {_milliseconds(limit['idleP99Ms'])} (p99)"
        yield Figure("Concurrent deletions allowed", f"{int(limit['level'])}", None, note)


def _time_left(trend: Any, *, is_paused: bool) -> Figure:
    left = None if trend is None else trend["secondsLeft"]
    if left:
        return Figure("Time left", format_age(round(left * 1000)), note="at the pace of the last ten minutes")
    is_measured = trend is not None and sum(each["pending"] is not None for each in trend["points"]) > 1
    return Figure("Time left", "unknown", note="paused" if is_paused else "not decreasing" if is_measured else None)


def _milliseconds(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f} ms"


def hindrances(reading: Reading) -> Iterator[Hindrance]:
    """What holds deletions back, the strongest first."""
    status = reading.value
    if status is None:
        return
    control, limit = status["control"], status["adaptiveLimit"]
    if not status["enabled"]:
        yield Hindrance("off", "Off", "topicTwoPhaseDeletionEnabled is false: this sidecar deletes nothing")
    if control["paused"]:
        yield Hindrance("warn", "Paused", f"{pause_words(control)}; recording continues")
    if status["enabled"] and not status["instances"]:
        yield Hindrance("bad", "No sidecar", "no sidecar is registered")
    if control["ratePerSecond"] is not None:
        yield Hindrance("busy", "Rate", f"each sidecar deletes at most {control['ratePerSecond']:g} a second")
    if limit is not None and limit["level"] < 2:
        yield Hindrance("warn", "Metadata store", "too slow, so one ledger is deleted at a time")
    if status["stuckTopicDeletions"]:
        yield Hindrance(
            "bad", "Stuck", f"{format_count(status['stuckTopicDeletions'], 'topic deletion')}; see their remedies below"
        )
    for warning in status["warnings"]:
        yield Hindrance("warn", "Warning", warning)
    if error := last_error(reading):
        yield Hindrance(error[0], "Last error", error[1])


def controls(status: Any) -> Sequence[Action]:
    """Pause or resume, the rate, and undelete."""
    if status is None:
        return ()
    control = status["control"]
    paused = control["paused"]
    reason = ActionField("reason", "Reason", note="every sidecar's status shows it")
    shared = (
        Action("Resume", f"{HERE}/resume", command("ledger-deletion", "resume"))
        if paused
        else Action("Pause", f"{HERE}/pause", command("ledger-deletion", "pause", "--reason", "TEXT"), [reason])
    )
    rate = "" if control["ratePerSecond"] is None else f"{control['ratePerSecond']:g}"
    return (
        shared,
        Action(
            "Limit the rate",
            f"{HERE}/rate",
            command("ledger-deletion", "rate", "NUMBER"),
            [
                ActionField(
                    "rate", "Ledgers a second of each sidecar", rate, "number", note="empty for no limit (rate none)"
                )
            ],
        ),
        Action(
            "Undelete a ledger",
            f"{HERE}/undelete",
            command("ledger-deletion", "undelete", "LEDGER_ID"),
            [
                ActionField("ledger", "Ledger id", "", "number", required=True),
                ActionField("force", "Also if bookies no longer hold its entries (--force)", "", "checkbox"),
            ],
            note="Bookies hold the entries of a deleted ledger until they collect it (gcWaitTime, 15 minutes).",
            takes="any",
        ),
    )


@router.get(TOPIC)
async def topic_deletion(request: Request) -> Response:
    """One topic deletion: what it waits for, and what it has left."""
    operation = request.query_params.get("id", "")
    reading = await read(request, path(f"{BASE}/topic-deletions", operation))
    deletion = reading.required()
    runs = deletion["endedMs"] is None
    return await page(
        request,
        "topic_deletion.html.j2",
        view=Followed(deletion, reading, abandoning(operation) if runs else None, STATES),
        title="Topic deletion",
    )


def abandoning(operation: str) -> Action:
    """The end of one topic deletion."""
    return Action(
        "Abandon",
        f"{HERE}/abandon",
        command("ledger-deletion", "abandon", operation),
        hidden={"id": operation},
        confirm=operation,
        danger=True,
        note="No sidecar asks a broker any more. What was recorded is judged as ever: what is referenced stays.",
        takes="any",
    )


def ending_protection(ledger: int) -> Action:
    """The end of a restored ledger's protection."""
    return Action(
        "End the protection",
        f"{HERE}/end-protection",
        command("ledger-deletion", "end-protection", str(ledger)),
        hidden={"ledger": str(ledger)},
        confirm=str(ledger),
        danger=True,
        takes="any",
    )


@router.post(f"{HERE}/pause")
async def pause(request: Request) -> Response:
    form = await form_of(request)
    body = {"reason": form["reason"]} if form.get("reason") else {}
    return await act(request, "POST", f"{BASE}/pause", body, back=HERE, done="Deletion is paused on all sidecars.")


@router.post(f"{HERE}/resume")
async def resume(request: Request) -> Response:
    await form_of(request)
    return await act(request, "POST", f"{BASE}/resume", back=HERE, done="Deletion continues on all sidecars.")


@router.post(f"{HERE}/rate")
async def rate(request: Request) -> Response:
    form = await form_of(request)
    limit = number_of(form.get("rate", ""), "the rate")
    done = "The rate has no limit." if limit is None else f"Each sidecar deletes at most {limit:g} a second."
    return await act(request, "PUT", f"{BASE}/rate", {"ledgersPerSecond": limit}, back=HERE, done=done)


@router.post(f"{HERE}/undelete")
async def undelete(request: Request) -> Response:
    form = await form_of(request)
    ledger = ledger_id_of(form.get("ledger", ""))

    def done(answer: Any) -> str:
        held = "" if answer["readable"] else " Bookies no longer hold all of its entries."
        return f"Ledger {ledger} is restored, and protected; add it to a topic's list again.{held}"

    body = {"ledgerId": ledger, "force": form.get("force") == "true"}
    return await act(request, "POST", f"{BASE}/undelete", body, back=HERE, done=done)


@router.post(f"{HERE}/end-protection")
async def end_protection(request: Request) -> Response:
    form = await form_of(request)
    ledger = ledger_id_of(form.get("ledger", ""))
    confirmed(form, str(ledger))
    done = f"Ledger {ledger} may be deleted again."
    return await act(request, "POST", f"{BASE}/end-protection", {"ledgerId": ledger}, back=HERE, done=done)


@router.post(f"{HERE}/abandon")
async def abandon(request: Request) -> Response:
    form = await form_of(request)
    operation = form.get("id", "")
    confirmed(form, operation)

    def done(answer: Any) -> str:
        left = answer["leftLedgers"]
        return f"The deletion is abandoned; left: {'not known' if left is None else format_count(left, 'ledger')}."

    url = f"{path(f'{BASE}/topic-deletions', operation)}/abandon"
    return await act(request, "POST", url, back=HERE, done=done)


def number_of(text: str, name: str) -> float | None:
    """A form's number; None if it is empty."""
    if not text:
        return None
    try:
        return float(text)
    except ValueError as error:
        raise InvalidInputError(f"{name} must be a number, such as 500") from error


def ledger_id_of(text: str) -> int:
    """A form's ledger id."""
    ledger_id = parse_ledger_id(text)
    if ledger_id is None:
        raise InvalidInputError("the ledger's id must be a whole number, such as 4711")
    return ledger_id
