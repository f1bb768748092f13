"""Leaks: what leaked, when, by which cause, and what became of it; the brake, the holds, and handing one on."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from pulsar_sidecar.analysis.formatting import format_minute
from pulsar_sidecar.analysis.pages import PlotItem
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import parse_ledger_id
from pulsar_sidecar.web import ask
from pulsar_sidecar.web.actions import Action, ActionField
from pulsar_sidecar.web.filters import PAGE_ROWS, Field, Pager, offset_of
from pulsar_sidecar.web.pages.deletions import line_of
from pulsar_sidecar.web.shell import act, form_of, page
from pulsar_sidecar.web.words import command

PATH = "/ui/leaks"
_WATCH = "/admin/v2/ledger-deletion/watch"
_COMMAND = ("ledger-deletion", "watch")
_STATES = {
    "settling": ("busy", "a broker may still delete it"),
    "kept": ("off", "it must not be deleted, or not yet"),
    "leaked": ("warn", "it may be deleted, and is not appended"),
    "appended": ("busy", "its record is on the pending-deletion topic"),
    "deleted": ("good", "it is gone"),
    "linked": ("good", "a node references it again"),
}
_CAUSES = (
    "trim",
    "cursor-switch",
    "subscription",
    "schema",
    "topic-deletion",
    "namespace-deletion",
    "compaction",
    "delayed-index",
    "offload",
    "failed-offload",
    "never-linked",
)
_WATCH_STATES = {"watching": "good", "walking": "warn", "starting": "busy", "standby": "off", "off": "off"}

router = APIRouter()


@dataclass(frozen=True, slots=True)
class ListedLeak:
    """A row: the answer, how its state is shown, and when it reached it, as far as that is known."""

    answer: Any
    kind: str
    reached_ms: int | None


@dataclass(frozen=True, slots=True)
class LeaksView:
    """The page.

    Attributes:
        watch_kind: how the watch's state is shown.
        trend: leaks by time; empty where there are none.
        last_hour: number of leaked ledgers, as far as this sidecar watched.
        unholds: for each hold the form that removes it.
    """

    watch: ask.Reading
    watch_kind: str
    reading: ask.Reading
    leaks: Sequence[ListedLeak]
    by_cause: Sequence[PlotItem]
    trend: Sequence[PlotItem]
    last_hour: Sequence[PlotItem]
    fields: Sequence[Field]
    pager: Pager | None
    actions: Sequence[Action]
    unholds: Sequence[tuple[str, Action]]
    command: str


@router.get(PATH)
async def leaks(request: Request) -> Response:
    query = request.query_params
    wanted = {name: value for name in ("state", "cause") if (value := query.get(name))}
    offset, ended = offset_of(request), query.get("ended") == "true"
    parameters = {**wanted, "ended": "true" if ended else None, "offset": offset or None, "limit": PAGE_ROWS}
    watch, hour, reading = await asyncio.gather(
        ask.read(request, _WATCH),
        ask.read(request, "/admin/v2/ledger-deletion/trend"),
        ask.read(
            request,
            f"{_WATCH}/leaks",
            {name: str(value) for name, value in parameters.items() if value is not None},
        ),
    )
    return await page(
        request, "leaks.html.j2", view=_view(request, watch, hour, reading, wanted, offset, ended=ended), title="Leaks"
    )


def _view(
    request: Request,
    watch: ask.Reading,
    hour: ask.Reading,
    reading: ask.Reading,
    wanted: dict[str, str],
    offset: int,
    *,
    ended: bool,
) -> LeaksView:
    found, status = reading.value, watch.value or {}
    options = [f"--{name}={value}" for name, value in wanted.items()] + (["--ended"] if ended else [])
    return LeaksView(
        watch,
        _WATCH_STATES.get(status.get("state", ""), "bad"),
        reading,
        [leak_of(each) for each in found["leaks"]] if found else [],
        causes_of(found["byCause"]) if found else [],
        trend_of(found["trend"]) if found else [],
        line_of(hour.value["points"] if hour.value else (), "leaked"),
        _fields(wanted, ended=ended),
        Pager.of(request, offset, PAGE_ROWS, found["total"]) if found else None,
        control_actions(status) if status else (),
        [(hold, _unhold(hold)) for hold in status.get("holds", ())],
        command(*_COMMAND, "leaks", *options),
    )


def leak_of(answer: Any) -> ListedLeak:
    """How one leak is shown."""
    kind, _ = _STATES.get(answer["state"], ("off", ""))
    return ListedLeak(answer, kind, answer["endedMs"] or answer["appendedMs"])


def causes_of(by_cause: dict[str, int]) -> list[PlotItem]:
    """The causes, the most frequent first."""
    ordered = sorted(by_cause.items(), key=lambda item: (-item[1], item[0]))
    return [PlotItem(cause, count, f"{count:,}") for cause, count in ordered]


def trend_of(periods: Sequence[Any]) -> list[PlotItem]:
    """One point for each period; a single one is not a trend."""
    if len(periods) < 2:
        return []
    return [PlotItem(format_minute(each["fromMs"]), each["leaks"], f"{each['leaks']:,}") for each in periods]


def _fields(wanted: dict[str, str], *, ended: bool) -> list[Field]:
    return [
        Field("state", "State", wanted.get("state"), [(state, state) for state in _STATES]),
        Field("cause", "Cause", wanted.get("cause"), [(cause, cause) for cause in _CAUSES]),
        Field("ended", "Deleted and linked ones", "true" if ended else None, [("true", "included")]),
    ]


def control_actions(status: Any) -> list[Action]:
    """What an operator may order the watch: the brake or its release, and a hold."""
    if status["braked"]:
        brake = Action(
            "Release the brake",
            f"{PATH}/resume",
            command(*_COMMAND, "resume"),
            note="Leaked ledgers are appended again, where ledgerDeletionWatch=append. Find out first why so many "
            "references vanished.",
        )
    else:
        brake = Action(
            "Brake",
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


def _unhold(hold: str) -> Action:
    return Action("Remove", f"{PATH}/unhold", command(*_COMMAND, "hold", "remove", hold), hidden={"hold": hold})


# --- one ledger ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LedgerView:
    """What the watch knows of one ledger."""

    ledger_id: int
    reading: ask.Reading
    leak: ListedLeak | None
    meaning: str
    copies: Sequence[ListedLeak]
    actions: Sequence[Action]
    command: str


@router.get(f"{PATH}/ledger")
async def leaked_ledger(request: Request) -> Response:
    ledger_id = _ledger_id(request.query_params.get("id", ""))
    reading = await ask.read(request, f"{_WATCH}/leaks/{ledger_id}")
    found = reading.required()
    leak, copies = found["leak"], found["copies"]
    view = LedgerView(
        ledger_id,
        reading,
        None if leak is None else leak_of(leak),
        "" if leak is None else _STATES.get(leak["state"], ("", ""))[1],
        list(map(leak_of, copies)),
        ledger_actions(ledger_id, leak, copies),
        command(*_COMMAND, "explain", str(ledger_id)),
    )
    return await page(request, "leaked_ledger.html.j2", view=view, title=f"Ledger {ledger_id}")


def ledger_actions(ledger_id: int, leak: Any, copies: Sequence[Any] = ()) -> list[Action]:
    """What may be ordered about one ledger, and about its copies in tiered storage."""
    ledger = {"ledger": str(ledger_id)}
    hold = Action(
        "Hold this ledger",
        f"{PATH}/hold",
        command(*_COMMAND, "hold", "add", str(ledger_id)),
        hidden={"hold": str(ledger_id), **ledger},
        note="It is never appended.",
    )
    leaked = [each for each in (leak, *copies) if each is not None and each["state"] == "leaked"]
    return [*(_hand_on(ledger_id, each["offloadAttempt"]) for each in leaked), hold]


def _hand_on(ledger_id: int, attempt: str | None) -> Action:
    which = "" if attempt is None else f" the copy of offload attempt {attempt}"
    options = [] if attempt is None else [f"--offload-attempt={attempt}"]
    return Action(
        f"Hand on{which} to the deletion service",
        f"{PATH}/append",
        command(*_COMMAND, "append", str(ledger_id), *options),
        hidden={"ledger": str(ledger_id), **({} if attempt is None else {"attempt": attempt})},
        note="The watch judges it once more and appends it within seconds; the service checks it again before it "
        "deletes it.",
    )


def _ledger_id(text: str) -> int:
    ledger_id = parse_ledger_id(text.strip())
    if ledger_id is None:
        raise InvalidInputError(f"{text[:100]!r} is not a ledger's id: give a number")
    return ledger_id


def _back(form: dict[str, str]) -> str:
    ledger = form.get("ledger")
    return PATH if ledger is None else f"{PATH}/ledger?id={_ledger_id(ledger)}"


# --- acts ----------------------------------------------------------------------------------------------------------


@router.post(f"{PATH}/resume")
async def resume(request: Request) -> Response:
    await form_of(request)
    return await act(request, "POST", f"{_WATCH}/resume", back=PATH, done="The brake is released.")


@router.post(f"{PATH}/brake")
async def brake(request: Request) -> Response:
    form = await form_of(request)
    body = {"reason": form.get("reason", "")}
    return await act(request, "POST", f"{_WATCH}/brake", body, back=PATH, done="The watch appends nothing.")


@router.post(f"{PATH}/hold")
async def hold(request: Request) -> Response:
    form = await form_of(request)
    held = form.get("hold", "")
    return await act(
        request, "POST", f"{_WATCH}/holds", {"hold": held}, back=_back(form), done=f"{held} is on the hold list."
    )


@router.post(f"{PATH}/unhold")
async def unhold(request: Request) -> Response:
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
    ledger_id = _ledger_id(form.get("ledger", ""))
    return await act(
        request,
        "POST",
        f"{_WATCH}/leaks/{ledger_id}/append",
        back=_back(form),
        done=f"Ledger {ledger_id} is appended; the second phase checks it again.",
        parameters={"offloadAttempt": form["attempt"]} if "attempt" in form else None,
    )
