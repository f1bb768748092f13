"""Overview: is anything wrong, and what first? Every number leads to its list."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from pulsar_sidecar.analysis.audit_pages import VERDICT_KINDS
from pulsar_sidecar.analysis.formatting import format_age, format_count, format_time
from pulsar_sidecar.web.ask import Reading, read
from pulsar_sidecar.web.shell import page
from pulsar_sidecar.web.words import last_error, pause_words, waiting_bytes

_BASE = "/admin/v2/ledger-deletion"
_AUDITS = "/admin/v2/audits"
_AUDITS_SECONDS = 30.0
_SWITCHED_OFF = 405
_DELETIONS = "/ui/deletions"
_DELAYED = "/ui/delayed"
_OPEN_LEAKS = ("leaked", "settling", "kept")

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Concern:
    """Something that is wrong, or may be; ``kind`` as in the macro ``state``."""

    kind: str
    word: str
    text: str
    href: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that leads to its list."""

    label: str
    text: str
    href: str
    kind: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Readings:
    """The answers that this page is made of."""

    deletion: Reading
    watch: Reading
    delayed: Reading
    audits: Reading

    def all(self) -> Sequence[Reading]:
        return (self.deletion, self.watch, self.delayed, self.audits)


@dataclass(frozen=True, slots=True)
class Overview:
    """The page: what is wrong, the worst first, then the figures."""

    concerns: Sequence[Concern]
    figures: Sequence[Figure]
    instances: Sequence[Any]
    readings: Sequence[Reading]


@router.get("/ui/")
async def overview(request: Request) -> Response:
    """What every room reports of itself."""
    paths = (f"{_BASE}/status", f"{_BASE}/watch", "/admin/v2/delayed-delivery/status")
    readings = Readings(
        *await asyncio.gather(
            *(read(request, path) for path in paths),
            read(request, _AUDITS, {"limit": "1"}, keep_seconds=_AUDITS_SECONDS),
        )
    )
    return await page(request, "overview.html.j2", view=overview_of(readings), title="Overview")


def overview_of(readings: Readings) -> Overview:
    """The page of these answers."""
    concerns = [
        *_unread(readings),
        *_deletion_concerns(readings.deletion.value),
        *_recent_error(readings.deletion, "Ledger deletion", _DELETIONS),
        *_recent_error(readings.delayed, "Delayed messages", _DELAYED),
        *_watch_concerns(readings.watch.value),
        *_audit_concerns(readings.audits.value),
    ]
    concerns.sort(key=lambda concern: (concern.kind != "bad", concern.kind == "off"))
    deletion = readings.deletion.value
    figures = [*_deletion_figures(deletion), *_watch_figures(readings.watch.value)]
    if delayed := readings.delayed.value:
        figures.append(_cancellations(delayed))
    figures += _audit_figures(readings.audits.value)
    return Overview(concerns, figures, deletion["instances"] if deletion else (), readings.all())


def _unread(readings: Readings) -> Iterator[Concern]:
    names = ("Ledger deletion", "Leak watch", "Delayed messages", "Audits")
    problems: dict[str, list[str]] = {}
    for name, reading in zip(names, readings.all(), strict=True):
        if reading.problem is not None and reading.status != _SWITCHED_OFF:
            problems.setdefault(reading.problem, []).append(name)
    for problem, found in problems.items():
        yield Concern("bad", "Not readable", f"{', '.join(found)}: {problem}", "/ui/")


def _recent_error(reading: Reading, room: str, href: str) -> Iterator[Concern]:
    error = last_error(reading)
    if error and error[0] == "warn":
        yield Concern("warn", room, f"last error: {error[1]}", href)


def _deletion_concerns(status: Any) -> Iterator[Concern]:
    if status is None or not status["enabled"]:
        return
    control = status["control"]
    if control["paused"]:
        yield Concern("warn", "Paused", pause_words(control), _DELETIONS)
    if stuck := status["stuckTopicDeletions"]:
        yield Concern("bad", "Stuck", f"{format_count(stuck, 'topic deletion')} cannot continue", _DELETIONS)
    if letters := status["deadLetters"]:
        yield Concern(
            "bad", "Dead letters", f"{format_count(letters, 'record')} given up", f"{_DELETIONS}/dead-letters"
        )
    if status["inflight"] is None:
        yield Concern("bad", "Backlog unknown", "brokers do not report the pending deletions", _DELETIONS)
    for warning in status["warnings"]:
        yield Concern("warn", "Warning", warning, _DELETIONS)


def _watch_concerns(watch: Any) -> Iterator[Concern]:
    if watch is None or watch["mode"] == "off":
        return
    if watch["braked"]:
        yield Concern("bad", "Brake", watch["braked"], "/ui/leaks")
    if watch["leaks"] is None:
        yield Concern("off", "Leaks unknown here", _unknown_leaks(watch), "/ui/leaks")
    elif leaked := watch["leaks"].get("leaked", 0):
        yield Concern("warn", "Leaks", f"{format_count(leaked, 'ledger')} without a reference", "/ui/leaks")
    if watch["unreadable"]:
        yield Concern(
            "warn", "Unreadable nodes", f"{format_count(watch['unreadable'], 'node')} could not be read", "/ui/leaks"
        )


def _deletion_figures(status: Any) -> Iterator[Figure]:
    if status is None:
        return
    if not status["enabled"]:
        yield Figure("Two-phase deletion", "off", _DELETIONS, "off", "topicTwoPhaseDeletionEnabled is false")
        return
    inflight, control = status["inflight"], status["control"]
    if inflight is None:
        yield Figure("Pending deletions", "unknown", _DELETIONS, "bad")
    else:
        oldest = inflight["oldestAgeMs"]
        note = None if oldest is None else f"oldest {format_age(oldest)}, {waiting_bytes(inflight)}"
        kind = "warn" if control["paused"] else "busy" if inflight["count"] else "good"
        yield Figure("Pending deletions", f"{inflight['count']:,}", _DELETIONS, kind, note)
    stuck = status["stuckTopicDeletions"]
    yield Figure(
        "Topic deletions",
        f"{status['runningTopicDeletions']:,}",
        f"{_DELETIONS}#topics",
        "bad" if stuck else None,
        f"{stuck:,} stuck" if stuck else None,
    )
    letters = status["deadLetters"]
    state = "bad" if letters else "good" if letters == 0 else None
    yield Figure("Dead letters", "unknown" if letters is None else f"{letters:,}", f"{_DELETIONS}/dead-letters", state)
    yield Figure("Namespace deletions", f"{status['runningNamespaceDeletions']:,}", f"{_DELETIONS}#namespaces")
    yield Figure("Sidecars", f"{len(status['instances']):,}", "/ui/#sidecars")


def _watch_figures(watch: Any) -> Iterator[Figure]:
    if watch is None:
        return
    leaks = watch["leaks"]
    if watch["mode"] == "off":
        yield Figure("Leak watch", "off", "/ui/leaks", "off")
    elif leaks is None:
        yield Figure("Leaked ledgers", "unknown here", "/ui/leaks", "off", _unknown_leaks(watch))
    else:
        count = sum(leaks.get(state, 0) for state in _OPEN_LEAKS)
        note = None if watch["ledgers"] is None else f"of {format_count(watch['ledgers'], 'ledger')}"
        if note and watch["unlinked"]:
            note += f"; {watch['unlinked']:,} never seen referenced"
        yield Figure("Leaked ledgers", f"{count:,}", "/ui/leaks", "warn" if leaks.get("leaked") else "good", note)


def _unknown_leaks(watch: Any) -> str:
    if watch["leader"]:
        return f"{watch['leader']['name']} watches for leaks, and lists them"
    return watch["detail"] or "no sidecar watches at this moment"


def _audit_concerns(audits: Any) -> Iterator[Concern]:
    if not audits:
        return
    for unreadable in audits["unreadable"]:
        yield Concern("warn", "Unreadable audit", unreadable["reason"], "/ui/audits")
    newest = next(iter(audits["audits"]), None)
    if newest and newest["verdict"] != "clean":
        kind = VERDICT_KINDS[newest["verdict"]]
        yield Concern(kind, f"Audit: {newest['verdict']}", newest["sentence"], f"/ui/audits/{newest['auditId']}")


def _audit_figures(audits: Any) -> Iterator[Figure]:
    newest = next(iter(audits["audits"]), None) if audits else None
    if newest:
        kind, note = VERDICT_KINDS[newest["verdict"]], f"as of {format_time(newest['asOfMs'])}"
        yield Figure("Newest audit", newest["verdict"], f"/ui/audits/{newest['auditId']}", kind, note)


def _cancellations(delayed: Any) -> Figure:
    if not delayed["enabled"]:
        return Figure("Cancelling", "off", _DELAYED, "off", "delayedMessageCancellingEnabled is false")
    return Figure("Open cancellations", f"{delayed['openCancellations']:,}", _DELAYED)
