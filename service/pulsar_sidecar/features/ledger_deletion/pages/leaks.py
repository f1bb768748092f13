"""Leaks page: leaked ledgers with time, cause and state; the brake, the holds, and appending one."""

import asyncio
from collections.abc import Mapping, Sequence
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import Response

from pulsar_sidecar.features.ledger_deletion.pages.deletions import ledger_id_of, line_of
from pulsar_sidecar.features.ledger_deletion.results import DeletionTrend
from pulsar_sidecar.features.ledger_deletion.watch.results import (
    Leak,
    LeakCause,
    LeakPeriod,
    LeakState,
    LedgerExplanation,
    ListedLeaks,
    WatchState,
    WatchStatus,
)
from pulsar_sidecar.reports.formatting import format_minute
from pulsar_sidecar.reports.pages import PlotItem
from pulsar_sidecar.web import ask
from pulsar_sidecar.web.actions import Action, ActionField
from pulsar_sidecar.web.filters import PAGE_ROWS, Field, Pager, offset_of
from pulsar_sidecar.web.shell import act, form_of, page
from pulsar_sidecar.web.words import command

PATH = "/ui/leaks"
_WATCH = "/admin/v2/ledger-deletion/watch"
_COMMAND = ("ledger-deletion", "watch")
_STATES = {
    LeakState.SETTLING: ("busy", "a broker may still delete it"),
    LeakState.KEPT: ("off", "it must not be deleted, or not yet"),
    LeakState.LEAKED: ("warn", "it may be deleted, and is not appended"),
    LeakState.APPENDED: ("busy", "its record is on the pending-deletion topic"),
    LeakState.DELETED: ("good", "it is gone"),
    LeakState.LINKED: ("good", "a node references it again"),
}
_WATCH_STATES = {
    WatchState.WATCHING: "good",
    WatchState.WALKING: "warn",
    WatchState.STARTING: "busy",
    WatchState.STANDBY: "off",
    WatchState.OFF: "off",
}

router = APIRouter()


@router.get(PATH)
async def leaks(request: Request) -> Response:
    query = request.query_params
    wanted = {name: value for name in ("state", "cause") if (value := query.get(name))}
    offset, ended = offset_of(request), query.get("ended") == "true"
    parameters = {**wanted, "ended": "true" if ended else None, "offset": offset or None, "limit": PAGE_ROWS}
    watch_read, hour, reading = await asyncio.gather(
        ask.read(request, _WATCH),
        ask.read(request, "/admin/v2/ledger-deletion/trend"),
        ask.read(
            request,
            f"{_WATCH}/leaks",
            {name: str(value) for name, value in parameters.items() if value is not None},
        ),
    )
    found, watch, trend = reading.parsed(ListedLeaks), watch_read.parsed(WatchStatus), hour.parsed(DeletionTrend)
    options = [f"--{name}={value}" for name, value in wanted.items()] + (["--ended"] if ended else [])
    view = {
        "watch_read": watch_read,
        "watch": watch,
        "watch_kind": "bad" if watch is None else _WATCH_STATES[watch.state],
        "reading": reading,
        "leaks": found.leaks if found else (),
        "states": _STATES,
        "by_cause": causes_of(found.by_cause) if found else [],
        "trend": trend_of(found.trend) if found else [],
        "last_hour": line_of(trend.points if trend else (), lambda point: point.leaked),
        "fields": _fields(wanted, ended=ended),
        "pager": Pager.of(request, offset, PAGE_ROWS, found.total) if found else None,
        "actions": control_actions(watch) if watch else (),
        "held": [(hold, _release_hold(hold)) for hold in (watch.holds if watch else ())],
        "command": command(*_COMMAND, "leaks", *options),
    }
    return await page(request, "leaks.html.j2", view=view, title="Leaks")


def causes_of(by_cause: Mapping[str, int]) -> list[PlotItem]:
    """Return the causes, the most frequent first."""
    ordered = sorted(by_cause.items(), key=lambda item: (-item[1], item[0]))
    return [PlotItem(cause, count, f"{count:,}") for cause, count in ordered]


def trend_of(periods: Sequence[LeakPeriod]) -> list[PlotItem]:
    """Return one point for each period; a single period is not a trend."""
    if len(periods) < 2:
        return []
    return [PlotItem(format_minute(each.from_ms), each.leaks, f"{each.leaks:,}") for each in periods]


def _fields(wanted: dict[str, str], *, ended: bool) -> list[Field]:
    return [
        Field("state", "State", wanted.get("state"), [(state.value, state.value) for state in LeakState]),
        Field("cause", "Cause", wanted.get("cause"), [(cause.value, cause.value) for cause in LeakCause]),
        Field("ended", "Deleted and linked ones", "true" if ended else None, [("true", "included")]),
    ]


def control_actions(status: WatchStatus) -> list[Action]:
    """Return the operator's actions on the watch: brake or release, and hold."""
    if status.braked:
        brake = Action(
            "Release the brake",
            f"{PATH}/resume",
            command(*_COMMAND, "resume"),
            note="Leaked ledgers are appended again, where ledgerDeletionWatch=append. Find out first why so many "
            "references vanished.",
        )
    else:
        brake = Action(
            "Engage the brake",
            f"{PATH}/brake",
            command(*_COMMAND, "brake", "--reason", "TEXT"),
            (ActionField("reason", "Why", required=True),),
            note="Nothing is appended until the brake is released.",
        )
    hold = Action(
        "Hold",
        f"{PATH}/hold",
        command(*_COMMAND, "hold", "add", "HOLD"),
        (ActionField("hold", "Ledger id, tenant, tenant/namespace or topic", required=True),),
        note="Its ledgers are never appended. A hold does not stop what is appended already.",
    )
    return [brake, hold]


def _release_hold(hold: str) -> Action:
    return Action("Remove", f"{PATH}/release-hold", command(*_COMMAND, "hold", "remove", hold), hidden={"hold": hold})


# --- one ledger ----------------------------------------------------------------------------------------------------


@router.get(f"{PATH}/ledger")
async def leaked_ledger(request: Request) -> Response:
    ledger_id = ledger_id_of(request.query_params.get("id", ""))
    reading = await ask.read(request, f"{_WATCH}/leaks/{ledger_id}")
    found = reading.answer(LedgerExplanation)
    view = {
        "reading": reading,
        "found": found,
        "states": _STATES,
        "actions": ledger_actions(ledger_id, found.leak, found.copies),
        "command": command(*_COMMAND, "explain", str(ledger_id)),
    }
    return await page(request, "leaked_ledger.html.j2", view=view, title=f"Ledger {ledger_id}")


def ledger_actions(ledger_id: int, leak: Leak | None, copies: Sequence[Leak]) -> list[Action]:
    """Return the actions on one ledger and on its copies in tiered storage."""
    ledger = {"ledger": str(ledger_id)}
    hold = Action(
        "Hold this ledger",
        f"{PATH}/hold",
        command(*_COMMAND, "hold", "add", str(ledger_id)),
        hidden={"hold": str(ledger_id), **ledger},
        note="It is never appended.",
    )
    leaked = [each for each in (leak, *copies) if each is not None and each.state is LeakState.LEAKED]
    return [*(_hand_over(ledger_id, each.offload_attempt) for each in leaked), hold]


def _hand_over(ledger_id: int, attempt: UUID | None) -> Action:
    which = "" if attempt is None else f" the copy of offload attempt {attempt}"
    options = [] if attempt is None else [f"--offload-attempt={attempt}"]
    return Action(
        f"Hand over{which} to the deletion service",
        f"{PATH}/append",
        command(*_COMMAND, "append", str(ledger_id), *options),
        hidden={"ledger": str(ledger_id), **({} if attempt is None else {"attempt": str(attempt)})},
        note="The watch judges it once more and appends it within seconds; the service checks it again before it "
        "deletes it.",
    )


def _back(form: dict[str, str]) -> str:
    ledger = form.get("ledger")
    return PATH if ledger is None else f"{PATH}/ledger?id={ledger_id_of(ledger)}"


# --- actions -------------------------------------------------------------------------------------------------------


@router.post(f"{PATH}/resume")
async def resume(request: Request) -> Response:
    await form_of(request)
    return await act(request, "POST", f"{_WATCH}/resume", back=PATH, done="The brake is released.")


@router.post(f"{PATH}/brake")
async def brake(request: Request) -> Response:
    form = await form_of(request)
    body = {"reason": form.get("reason", "")}
    return await act(
        request, "POST", f"{_WATCH}/brake", body, back=PATH, done="The brake is engaged; the watch appends nothing."
    )


@router.post(f"{PATH}/hold")
async def hold(request: Request) -> Response:
    form = await form_of(request)
    held = form.get("hold", "")
    return await act(
        request, "POST", f"{_WATCH}/holds", {"hold": held}, back=_back(form), done=f"{held} is on the hold list."
    )


@router.post(f"{PATH}/release-hold")
async def release_hold(request: Request) -> Response:
    form = await form_of(request)
    held = form.get("hold", "")
    return await act(
        request,
        "DELETE",
        f"{_WATCH}/holds",
        back=PATH,
        done=f"{held} is off the hold list.",
        parameters={"hold": held},
    )


@router.post(f"{PATH}/append")
async def append(request: Request) -> Response:
    form = await form_of(request)
    ledger_id = ledger_id_of(form.get("ledger", ""))
    return await act(
        request,
        "POST",
        f"{_WATCH}/leaks/{ledger_id}/append",
        back=_back(form),
        done=f"Ledger {ledger_id} is appended; the second phase checks it again.",
        parameters={"offloadAttempt": form["attempt"]} if "attempt" in form else None,
    )
