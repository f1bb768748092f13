"""Deletions page: backlog, age, speed and problems; progress of topic and namespace deletions."""

import asyncio
from collections.abc import Callable, Iterator, Sequence

from fastapi import APIRouter, Request
from starlette.responses import Response

from pulsar_sidecar.features.ledger_deletion.results import (
    Control,
    DeletionTrend,
    FollowedDeletion,
    NamespaceDeletionStatus,
    OperationState,
    Reclaim,
    ServiceStatus,
    TopicDeletionStatus,
    TrendPoint,
    UndeleteResult,
)
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import parse_ledger_id
from pulsar_sidecar.reports.formatting import format_age, format_bytes, format_count, format_minute, format_time
from pulsar_sidecar.reports.pages import PlotItem
from pulsar_sidecar.web.actions import Action, ActionField
from pulsar_sidecar.web.ask import KEEP_SECONDS, Reading, path, read
from pulsar_sidecar.web.filters import PAGE_ROWS, Field, Pager, offset_of
from pulsar_sidecar.web.forms import confirmed
from pulsar_sidecar.web.overview_parts import Figure
from pulsar_sidecar.web.shell import act, form_of, page
from pulsar_sidecar.web.words import command, last_error

HERE = "/ui/deletions"
TOPIC = f"{HERE}/topic"
BASE = "/admin/v2/ledger-deletion"
STATES = {
    OperationState.RUNNING: "busy",
    OperationState.STUCK: "bad",
    OperationState.UNREADABLE: "bad",
    OperationState.DONE: "good",
    OperationState.REFUSED: "warn",
    OperationState.ABANDONED: "off",
}

_LISTS_SECONDS = 9.0
"""Less than the period in which a page refreshes its lists of running deletions."""
_READ = {
    "status": KEEP_SECONDS,
    "topic-deletions": _LISTS_SECONDS,
    "namespace-deletions": _LISTS_SECONDS,
    "trend": KEEP_SECONDS,
}
_RUNNING = (OperationState.RUNNING, OperationState.STUCK, OperationState.UNREADABLE)

router = APIRouter()


@router.get(HERE)
async def deletions(request: Request) -> Response:
    """Show all about deletions except the dead letters."""
    readings = await asyncio.gather(*(read(request, f"{BASE}/{name}", None, kept) for name, kept in _READ.items()))
    return await page(request, "deletions.html.j2", view=_view(request, *readings), title="Deletions")


def _view(
    request: Request, status_read: Reading, topics: Reading, namespaces: Reading, trend_read: Reading
) -> dict[str, object]:
    status, trend = status_read.parsed(ServiceStatus), trend_read.parsed(DeletionTrend)
    state, name = request.query_params.get("state", ""), request.query_params.get("topic", "")
    running = topics.parsed(list[TopicDeletionStatus]) or []
    is_filtered = bool(state or name)
    matching = [each for each in running if _matches(each, state, name)] if is_filtered else running
    offset = offset_of(request)
    return {
        "status": status_read,
        "topics_read": topics,
        "namespaces_read": namespaces,
        "figures": [] if status is None else list(figures(status, trend)),
        "plots": [] if trend is None else plots_of(trend),
        "problems": [] if status is None else list(problems(status, status_read.as_of_ms)),
        "controls": () if status is None else controls(status.control),
        "topics": matching[offset : offset + PAGE_ROWS],
        "pager": Pager.of(request, offset, PAGE_ROWS, len(matching)),
        "filters": (
            Field("topic", "Topic contains", name),
            Field("state", "State", state, [(each.value, each.value) for each in _RUNNING]),
        ),
        "filtered": is_filtered,
        "namespaces": namespaces.parsed(list[NamespaceDeletionStatus]) or (),
        "protected": [
            (each, ending_protection(each.ledger_id)) for each in (status.protected_ledgers if status else ())
        ],
        "states": STATES,
    }


def _matches(deletion: TopicDeletionStatus, state: str, name: str) -> bool:
    return (not state or deletion.state == state) and (not name or name in (deletion.topic or ""))


def plots_of(trend: DeletionTrend) -> list[tuple[str, Sequence[PlotItem]]]:
    """Return the last hour as captions and lines; a line needs two points."""
    lines = (
        ("Pending ledgers", line_of(trend.points, lambda point: point.pending)),
        ("Deleted per second by this sidecar", line_of(trend.points, lambda point: point.deleted_per_second)),
    )
    return [(caption, line) for caption, line in lines if len(line) > 1]


def line_of(points: Sequence[TrendPoint], figure: Callable[[TrendPoint], float | None]) -> list[PlotItem]:
    """Return one figure's known points of the last hour."""
    known = [(each.at_ms, value) for each in points if (value := figure(each)) is not None]
    return [PlotItem(f"{format_minute(at)} UTC", value, f"{round(value, 1):,}") for at, value in known]


def figures(status: ServiceStatus, trend: DeletionTrend | None) -> Iterator[Figure]:
    """Yield the figures of backlog, age and speed."""
    inflight, limit, speed = status.inflight, status.adaptive_limit, status.deleted_per_second
    if inflight is None:
        yield Figure("Pending ledgers", "unknown", None, "bad", "brokers do not report it")
    else:
        oldest, size = inflight.oldest_age_ms, inflight.waiting_bytes
        kind = "busy" if inflight.count else "good"
        yield Figure("Pending ledgers", f"{inflight.count:,}", f"{HERE}/pending", kind)
        yield Figure("Oldest", "none" if oldest is None else format_age(oldest))
        yield Figure(
            "Size of pending ledgers", format_bytes(size), note="estimated from recent ledgers" if size else None
        )
        if inflight.count:
            yield _time_left(trend, is_paused=status.control.paused)
    yield Figure("Deleted per second", "unknown" if speed is None else f"{speed:,.1f}", note="by this sidecar, now")
    yield dead_letters_figure(status.dead_letters)
    if (reclaim := status.reclaimed) is not None:
        yield _reclaimed(reclaim)
    if limit is not None:
        note = f"latency {_milliseconds(limit.recent_p99_ms)}, idle {_milliseconds(limit.idle_p99_ms)} (p99)"
        yield Figure("Concurrent deletions allowed", f"{int(limit.level)}", note=note)


def dead_letters_figure(letters: int | None) -> Figure:
    state = "bad" if letters else "good" if letters == 0 else None
    return Figure("Dead letters", "unknown" if letters is None else f"{letters:,}", f"{HERE}/dead-letters", state)


def _time_left(trend: DeletionTrend | None, *, is_paused: bool) -> Figure:
    left = None if trend is None else trend.seconds_left
    if left:
        return Figure("Time left", format_age(round(left * 1000)), note="at the pace of the last ten minutes")
    is_measured = trend is not None and sum(each.pending is not None for each in trend.points) > 1
    return Figure("Time left", "unknown", note="paused" if is_paused else "not decreasing" if is_measured else None)


def _reclaimed(reclaim: Reclaim) -> Figure:
    if reclaim.last_deleted_ms is None:
        return Figure("Reclaimed by bookies", "none", note="no recorded ledger was deleted in the last day")
    bookies, age = len(reclaim.bookies), format_age(reclaim.as_of_ms - reclaim.last_deleted_ms)
    shrunk = [each.reclaimed_bytes for each in reclaim.bookies if each.reclaimed_bytes is not None]
    notes = [f"{format_bytes(reclaim.deleted_bytes)} (one copy) deleted in a day, the last {age} before"]
    if shrunk:
        notes.append(f"the files of {len(shrunk)} have shrunk by {format_bytes(sum(shrunk))} since their start")
    note = "; ".join([*notes, f"as of {format_time(reclaim.as_of_ms)}"])
    kind = "good" if reclaim.collected_bookies == bookies else "busy"
    return Figure("Reclaimed by bookies", f"{reclaim.collected_bookies} of {bookies}", kind=kind, note=note)


def _milliseconds(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f} ms"


def problems(status: ServiceStatus, as_of_ms: int | None) -> Iterator[tuple[str, str, str]]:
    """Yield what prevents or slows deletion, the most severe first: kind, as in the macro ``state``, word and text."""
    control, limit = status.control, status.adaptive_limit
    if not status.enabled:
        yield "off", "Off", "topicTwoPhaseDeletionEnabled is false: this sidecar deletes nothing"
    if control.paused:
        yield "warn", "Paused", f"{pause_words(control)}; recording continues"
    if status.enabled and not status.instances:
        yield "bad", "No sidecar", "no sidecar is registered"
    if control.rate_per_second is not None:
        yield "busy", "Rate", f"each sidecar deletes at most {control.rate_per_second:g} per second"
    if limit is not None and limit.level < 2:
        yield "warn", "Metadata store", "too slow, so one ledger is deleted at a time"
    if stuck := status.stuck_topic_deletions:
        yield "bad", "Stuck", f"{format_count(stuck, 'topic deletion')}; see their remedies below"
    for warning in status.warnings:
        yield "warn", "Warning", warning
    if error := last_error(status, as_of_ms):
        yield error[0], "Last error", error[1]


def pause_words(control: Control) -> str:
    """Return the known author, time and reason of a pause of deletion, as text."""
    who = "" if control.paused_by is None else f" by {control.paused_by}"
    since = "" if control.paused_since_ms is None else f" since {format_time(control.paused_since_ms)}"
    return f"{control.paused_reason or 'no reason given'} (paused{who}{since})"


def controls(control: Control) -> Sequence[Action]:
    """Return the actions pause or resume, rate, and undelete."""
    reason = ActionField("reason", "Reason", note="every sidecar's status shows it")
    shared = (
        Action("Resume", f"{HERE}/resume", command("ledger-deletion", "resume"))
        if control.paused
        else Action("Pause", f"{HERE}/pause", command("ledger-deletion", "pause", "--reason", "TEXT"), [reason])
    )
    rate = "" if control.rate_per_second is None else f"{control.rate_per_second:g}"
    return (
        shared,
        Action(
            "Limit the rate",
            f"{HERE}/rate",
            command("ledger-deletion", "rate", "NUMBER"),
            [
                ActionField(
                    "rate", "Ledgers per second for each sidecar", rate, "number", note="empty for no limit (rate none)"
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
    """Show one topic deletion: the reason for its wait, and what remains."""
    operation = request.query_params.get("id", "")
    reading = await read(request, path(f"{BASE}/topic-deletions", operation))
    deletion = reading.answer(FollowedDeletion)
    abandon = abandoning(operation) if deletion.ended_ms is None else None
    view = {"deletion": deletion, "reading": reading, "abandon": abandon, "states": STATES}
    return await page(request, "topic_deletion.html.j2", view=view, title="Topic deletion")


def abandoning(operation: str) -> Action:
    """Return the action that abandons one topic deletion."""
    return Action(
        "Abandon",
        f"{HERE}/abandon",
        command("ledger-deletion", "abandon", operation),
        hidden={"id": operation},
        confirm=operation,
        danger=True,
        note="The sidecars send brokers no further requests, and evaluate records as usual: referenced ledgers stay.",
        takes="any",
    )


def ending_protection(ledger: int) -> Action:
    """Return the action that ends a restored ledger's protection."""
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
    done = "The rate has no limit." if limit is None else f"Each sidecar deletes at most {limit:g} per second."
    return await act(request, "PUT", f"{BASE}/rate", {"ledgersPerSecond": limit}, back=HERE, done=done)


@router.post(f"{HERE}/undelete")
async def undelete(request: Request) -> Response:
    form = await form_of(request)
    ledger = ledger_id_of(form.get("ledger", ""))

    def done(restored: UndeleteResult) -> str:
        held = "" if restored.readable else " Bookies no longer hold all of its entries."
        return f"Ledger {ledger} is restored, and protected; add it to a topic's list again.{held}"

    body = {"ledgerId": ledger, "force": form.get("force") == "true"}
    return await act(request, "POST", f"{BASE}/undelete", body, back=HERE, done=done, kind=UndeleteResult)


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

    def done(abandoned: FollowedDeletion) -> str:
        left = abandoned.left_ledgers
        return f"The deletion is abandoned; left: {'not known' if left is None else format_count(left, 'ledger')}."

    url = f"{path(f'{BASE}/topic-deletions', operation)}/abandon"
    return await act(request, "POST", url, back=HERE, done=done, kind=FollowedDeletion)


def number_of(text: str, name: str) -> float | None:
    """Parse a form's number; None if it is empty."""
    if not text:
        return None
    try:
        return float(text)
    except ValueError as error:
        raise InvalidInputError(f"{name} must be a number, such as 500") from error


def ledger_id_of(text: str) -> int:
    """Parse a form's ledger id."""
    ledger_id = parse_ledger_id(text.strip())
    if ledger_id is None:
        raise InvalidInputError(f"{text[:100]!r} is no ledger id: it must be a whole number, such as 4711")
    return ledger_id
