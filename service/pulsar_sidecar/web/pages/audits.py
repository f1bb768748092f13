"""Audits: what they found, down to a ledger, who uses how much; and the approval of a plan by its hash."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import Response

from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.model.errors import InvalidInputError, NotFoundError
from pulsar_sidecar.model.ids import parse_ledger_id
from pulsar_sidecar.web import ask
from pulsar_sidecar.web.actions import Action, ActionField
from pulsar_sidecar.web.filters import PAGE_ROWS, Field, Pager, offset_of
from pulsar_sidecar.web.forms import confirmed
from pulsar_sidecar.web.shell import act, form_of, page
from pulsar_sidecar.web.words import command

PATH = "/ui/audits"
_AUDITS = "/admin/v2/audits"
_KEEP_SECONDS = 30.0
"""Audits do not change; only new ones appear."""
_MOST_GROUPS = 200
_LEVELS = ("tenant", "namespace", "topic")
_FILTERS = {"status": "Status", "kind": "Kind", "cause": "Likely cause"}
TABLES: Mapping[str, tuple[str, str]] = {
    "orphans": ("Unreferenced ledgers", "Ledgers that exist and that nothing references."),
    "missing": ("Missing ledgers", "References to ledgers that do not exist: their data is lost."),
    "unattributed": ("Ledgers without a known owner", "Nothing references them; they are never deletable."),
    "usage": ("Usage", "Ledgers and bytes of each owner."),
}
"""Title and meaning of each table."""

router = APIRouter()


@dataclass(frozen=True, slots=True)
class AuditsView:
    """The list; ``trend`` is what the newest audit remembers."""

    reading: ask.Reading
    audits: Sequence[Any]
    unreadable: Sequence[Any]
    pager: Pager | None
    trend: Sequence[Any]


@router.get(PATH)
async def audits(request: Request) -> Response:
    offset = offset_of(request)
    reading = await ask.read(request, _AUDITS, {"offset": str(offset), "limit": str(PAGE_ROWS)})
    found = reading.value
    trend: Sequence[Any] = ()
    if found and found["audits"] and offset == 0:
        newest = await ask.read(request, _path(found["audits"][0]["auditId"]), keep_seconds=_KEEP_SECONDS)
        trend = newest.value["history"] if newest.value else ()
    view = AuditsView(
        reading,
        found["audits"] if found else (),
        found["unreadable"] if found else (),
        Pager.of(request, offset, PAGE_ROWS, found["total"]) if found else None,
        trend,
    )
    return await page(request, "audits.html.j2", view=view, title="Audits")


# --- one audit -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AuditView:
    """One audit; ``place`` is its address, ``share`` how much of its plan is sent, from 0 to 100."""

    audit: Any
    place: str
    reading: ask.Reading
    application: ask.Reading
    share: int
    action: Action | None
    command: str


@router.get(f"{PATH}/{{audit_id}}")
async def audit(request: Request, audit_id: str) -> Response:
    reading, application = await asyncio.gather(
        ask.read(request, _path(audit_id), keep_seconds=_KEEP_SECONDS),
        ask.read(request, f"{_path(audit_id)}/application"),
    )
    found = reading.required()
    applied = application.value
    view = AuditView(
        found,
        _place(audit_id),
        reading,
        application,
        100 * applied["sent"] // applied["rows"] if applied and applied["rows"] else 0,
        approval_of(found, applied) if applied else None,
        command("audit", "show", found["directory"]),
    )
    return await page(request, "audit.html.j2", view=view, title=f"Audit {audit_id}")


def approval_of(audit: Any, application: Any) -> Action | None:
    """The form that approves what is left of a plan; None if there is nothing to send, or it is being sent."""
    plan = audit["plan"]
    if plan is None or not plan["ledgers"] or application["state"] in ("no-plan", "sending", "sent"):
        return None
    is_begun = application["state"] == "incomplete"
    rows = plan["ledgers"] - application["sent"]
    return Action(
        f"{'Resume' if is_begun else 'Approve and send'}: {format_count(rows, 'ledger')}",
        f"{_place(audit['auditId'])}/apply",
        command("audit", "apply", audit["directory"], "--execute", "--plan", plan["sha256"]),
        (
            ActionField("rate", "Records a second, at most", kind="number", note="empty: no limit"),
            ActionField("hours", "Largest age of the audit, in hours", "72", kind="number", required=True),
        ),
        {"plan": plan["sha256"]},
        confirm=plan["sha256"],
        danger=True,
        note="Each ledger becomes a pending deletion; the deletion service checks it again before it deletes it.",
    )


# --- rows ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Crumb:
    """One step on the way down."""

    text: str
    href: str


@dataclass(frozen=True, slots=True)
class TableView:
    """Rows of a table, and above them what they come to on the next level.

    Attributes:
        level: ``tenant``, ``namespace`` or ``topic``; None below a topic, and for a table without owners.
        groups: value, count, and address of the next level of each group.
    """

    audit_id: str
    place: str
    table: str
    meaning: str
    rows: ask.Reading
    pager: Pager | None
    crumbs: Sequence[Crumb]
    level: str | None
    groups: Sequence[tuple[str | None, Any, str | None]]
    left_out: int
    groups_reading: ask.Reading | None
    fields: Sequence[Field]
    hidden: Mapping[str, str]


@router.get(f"{PATH}/{{audit_id}}/tables/{{table}}")
async def table(request: Request, audit_id: str, table: str) -> Response:
    if table not in TABLES:
        raise NotFoundError(f"an audit has no table {table[:50]!r}; it has {', '.join(TABLES)}")
    wanted = {name: value for name in (*_LEVELS, *_FILTERS) if (value := request.query_params.get(name))}
    level = next_level(table, wanted)
    path, offset = f"{_path(audit_id)}/tables/{table}", offset_of(request)
    rows, groups = await asyncio.gather(
        ask.read(
            request,
            path,
            {**wanted, "order": "size", "offset": str(offset), "limit": str(PAGE_ROWS)},
            keep_seconds=_KEEP_SECONDS,
        ),
        _groups(request, path, wanted, level),
    )
    found = groups.value if groups is not None and groups.value else []
    title, meaning = TABLES[table]
    here = f"{_place(audit_id)}/tables/{table}"
    view = TableView(
        audit_id,
        _place(audit_id),
        table,
        meaning,
        rows,
        Pager.of(request, offset, PAGE_ROWS, rows.value["total"]) if rows.value else None,
        crumbs_of(here, wanted),
        level,
        [(each["value"], each, _deeper(here, wanted, level, each["value"])) for each in found[:_MOST_GROUPS]],
        max(0, len(found) - _MOST_GROUPS),
        groups,
        _fields(table, wanted),
        {name: wanted[name] for name in _LEVELS if name in wanted},
    )
    return await page(request, "audit_table.html.j2", view=view, title=title)


def next_level(table: str, wanted: Mapping[str, str]) -> str | None:
    """What rows are counted by, on the way from everything down to a topic."""
    if table == "unattributed":
        return None
    chosen = [place for place, level in enumerate(_LEVELS) if level in wanted]
    return next(iter(_LEVELS[chosen[-1] + 1 :] if chosen else _LEVELS), None)


def crumbs_of(here: str, wanted: Mapping[str, str]) -> list[Crumb]:
    """The way down to what is shown, each step with the filters that are not on the way."""
    others = {name: value for name, value in wanted.items() if name in _FILTERS}
    crumbs = [Crumb("everything", _address(here, others))]
    for level in _LEVELS:
        if level in wanted:
            others[level] = wanted[level]
            crumbs.append(Crumb(wanted[level], _address(here, others)))
    return crumbs


async def _groups(request: Request, path: str, wanted: Mapping[str, str], level: str | None) -> ask.Reading | None:
    if level is None:
        return None
    return await ask.read(request, f"{path}/groups", {**wanted, "by": level}, keep_seconds=_KEEP_SECONDS)


def _deeper(here: str, wanted: Mapping[str, str], level: str | None, value: str | None) -> str | None:
    return None if level is None or value is None else _address(here, {**wanted, level: value})


def _fields(table: str, wanted: Mapping[str, str]) -> list[Field]:
    shown = {"orphans": _FILTERS, "missing": {"kind": "Kind"}, "usage": {"kind": "Kind"}}.get(table, {})
    return [Field(name, label, wanted.get(name)) for name, label in shown.items()]


def _address(here: str, parameters: Mapping[str, str]) -> str:
    return f"{here}?{urlencode(parameters)}" if parameters else here


# --- one ledger ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LedgerView:
    """What an audit knows of a ledger, a sentence a line; ``searched`` if its dump was read for references."""

    audit_id: str
    place: str
    ledger_id: int
    reading: ask.Reading
    lines: Sequence[str]
    searched: bool
    command: str


@router.get(f"{PATH}/{{audit_id}}/ledger")
async def ledger(request: Request, audit_id: str) -> Response:
    text, searched = request.query_params.get("id", ""), request.query_params.get("references") == "true"
    ledger_id = parse_ledger_id(text.strip())
    if ledger_id is None:
        raise InvalidInputError(f"{text[:100]!r} is not a ledger's id: give a number")
    reading, audit = await asyncio.gather(
        ask.read(
            request,
            f"{_path(audit_id)}/ledgers/{ledger_id}",
            {"references": "true"} if searched else None,
            keep_seconds=_KEEP_SECONDS,
        ),
        ask.read(request, _path(audit_id), keep_seconds=_KEEP_SECONDS),
    )
    found = reading.required()
    words = ["audit", "explain", audit.required()["directory"], str(ledger_id)]
    view = LedgerView(
        audit_id,
        _place(audit_id),
        ledger_id,
        reading,
        found["explanation"].splitlines(),
        searched,
        command(*words, *(["--dump", found["dump"]] if searched else [])),
    )
    return await page(request, "audited_ledger.html.j2", view=view, title=f"Ledger {ledger_id}")


# --- acts ----------------------------------------------------------------------------------------------------------


@router.post(f"{PATH}/{{audit_id}}/apply")
async def apply(request: Request, audit_id: str) -> Response:
    form = await form_of(request)
    plan = form.get("plan", "")
    confirmed(form, plan)
    body: dict[str, Any] = {"plan": plan, "maxAgeHours": _number(form, "hours")}
    if form.get("rate"):
        body["rate"] = _number(form, "rate")
    return await act(
        request,
        "POST",
        f"{_path(audit_id)}/application",
        body,
        back=_place(audit_id),
        done=lambda answer: f"The plan of {format_count(answer['rows'], 'ledger')} is {answer['state']}.",
    )


def _number(form: Mapping[str, str], name: str) -> float:
    try:
        return float(form.get(name, ""))
    except ValueError as error:
        raise InvalidInputError(f"{form.get(name, '')[:50]!r} is not a number of {name}") from error


def _path(audit_id: str) -> str:
    return ask.path(_AUDITS, audit_id)


def _place(audit_id: str) -> str:
    return ask.path(PATH, audit_id)
