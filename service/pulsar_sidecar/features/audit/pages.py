"""Audits: findings down to a ledger, usage by owner, and the approval of a plan by its hash."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import Response

from pulsar_sidecar.features.audit.results.answers import (
    ApplicationState,
    Audit,
    AuditDetails,
    Audits,
    LedgerInAudit,
    PastAudit,
    PlanApplication,
    RowGroup,
    TableRows,
)
from pulsar_sidecar.features.audit.results.summaries import AuditSummary, parse_summary
from pulsar_sidecar.model.errors import InvalidInputError, NotFoundError
from pulsar_sidecar.model.ids import parse_ledger_id
from pulsar_sidecar.reports.audit_pages import VERDICT_KINDS
from pulsar_sidecar.reports.formatting import format_count, format_time
from pulsar_sidecar.web import ask
from pulsar_sidecar.web.actions import Action, ActionField
from pulsar_sidecar.web.filters import PAGE_ROWS, Field, Pager, offset_of
from pulsar_sidecar.web.forms import confirmed
from pulsar_sidecar.web.overview_parts import Concern, Figure, OverviewPart, Shown
from pulsar_sidecar.web.shell import act, form_of, page
from pulsar_sidecar.web.words import command

PATH = "/ui/audits"
_AUDITS = "/admin/v2/audits"
_KEEP_SECONDS = 30.0
"""Time to cache responses, in seconds: audits do not change; only new ones appear."""
_MOST_GROUPS = 200
_NOTHING_TO_APPROVE = (ApplicationState.NO_PLAN, ApplicationState.SENDING, ApplicationState.SENT)
_LEVELS = ("tenant", "namespace", "topic")
_FILTERS = {"status": "Status", "kind": "Kind", "cause": "Likely cause", "finding": "Finding"}
_SHOWN_FILTERS = {
    "orphans": ("status", "kind", "cause"),
    "missing": ("kind",),
    "usage": ("kind",),
    "offloaded": ("finding", "status", "cause"),
}
TABLES: Mapping[str, tuple[str, str]] = {
    "orphans": ("Unreferenced ledgers", "Ledgers that exist and that nothing references."),
    "missing": ("Missing ledgers", "References to ledgers that do not exist: their data is lost."),
    "unattributed": ("Ledgers without a known owner", "Nothing references them; they are never deletable."),
    "usage": ("Usage", "Ledgers and bytes of each owner."),
    "offloaded": ("Tiered storage", "Copies that nothing references, and copies that are missing or incomplete."),
}
"""Title and meaning of each table."""

router = APIRouter()


@dataclass(frozen=True, slots=True)
class AuditsView:
    """List of audits; ``trend`` is the newest audit's history."""

    reading: ask.Reading
    found: Audits | None
    pager: Pager | None
    trend: Sequence[PastAudit]


@router.get(PATH)
async def audits(request: Request) -> Response:
    offset = offset_of(request)
    reading = await ask.read(request, _AUDITS, {"offset": str(offset), "limit": str(PAGE_ROWS)})
    found = reading.parsed(Audits)
    trend: Sequence[PastAudit] = ()
    if found and found.audits and offset == 0:
        newest = await ask.read(request, _path(found.audits[0].audit_id), keep_seconds=_KEEP_SECONDS)
        details = newest.parsed(AuditDetails)
        trend = details.history if details else ()
    pager = Pager.of(request, offset, PAGE_ROWS, found.total) if found else None
    view = AuditsView(reading, found, pager, trend)
    return await page(request, "audits.html.j2", view=view, title="Audits")


# --- one audit -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AuditView:
    """One audit; ``place`` is its address, ``share`` the percentage of its plan that is sent."""

    audit: AuditDetails
    summary: AuditSummary
    place: str
    application: ask.Reading
    applied: PlanApplication | None
    share: int
    action: Action | None
    command: str


@router.get(f"{PATH}/{{audit_id}}")
async def audit(request: Request, audit_id: str) -> Response:
    reading, application = await asyncio.gather(
        ask.read(request, _path(audit_id), keep_seconds=_KEEP_SECONDS),
        ask.read(request, f"{_path(audit_id)}/application"),
    )
    found, applied = reading.answer(AuditDetails), application.parsed(PlanApplication)
    view = AuditView(
        found,
        parse_summary({**found.summary, "files": {}}),
        _place(audit_id),
        application,
        applied,
        100 * applied.sent // applied.rows if applied and applied.rows else 0,
        approval_of(found, applied) if applied else None,
        command("audit", "show", found.directory),
    )
    return await page(request, "audit.html.j2", view=view, title=f"Audit {audit_id}")


def approval_of(audit: Audit, application: PlanApplication) -> Action | None:
    """Return the form that approves the rest of a plan; None if nothing is left or the sidecar is sending it."""
    plan = audit.plan
    if plan is None or not plan.ledgers or application.state in _NOTHING_TO_APPROVE:
        return None
    is_begun = application.state is ApplicationState.INCOMPLETE
    rows = plan.ledgers - application.sent
    return Action(
        f"{'Resume' if is_begun else 'Approve and send'}: {format_count(rows, 'ledger')}",
        f"{_place(audit.audit_id)}/apply",
        command("audit", "apply", audit.directory, "--execute", "--plan", plan.sha256),
        (
            ActionField("rate", "Maximum records per second", kind="number", note="empty: no limit"),
            ActionField("hours", "Maximum age of the audit, in hours", "72", kind="number", required=True),
        ),
        {"plan": plan.sha256},
        confirm=plan.sha256,
        danger=True,
        note="Each ledger becomes a pending deletion; the deletion service checks it again before it deletes it.",
    )


# --- rows ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Crumb:
    """Breadcrumb: an owner on a higher level."""

    text: str
    href: str


@dataclass(frozen=True, slots=True)
class TableView:
    """Rows of a table, below their counts on the next level.

    Attributes:
        level: ``tenant``, ``namespace`` or ``topic``; None below a topic, and for a table without owners.
        groups: groups of the next level, each with its address.
    """

    audit_id: str
    place: str
    table: str
    meaning: str
    reading: ask.Reading
    rows: TableRows | None
    pager: Pager | None
    crumbs: Sequence[Crumb]
    level: str | None
    groups: Sequence[tuple[RowGroup, str | None]]
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
    reading, groups = await asyncio.gather(
        ask.read(
            request,
            path,
            {**wanted, "order": "size", "offset": str(offset), "limit": str(PAGE_ROWS)},
            keep_seconds=_KEEP_SECONDS,
        ),
        _groups(request, path, wanted, level),
    )
    rows = reading.parsed(TableRows)
    found = (groups.parsed(list[RowGroup]) if groups else None) or []
    title, meaning = TABLES[table]
    here = f"{_place(audit_id)}/tables/{table}"
    view = TableView(
        audit_id,
        _place(audit_id),
        table,
        meaning,
        reading,
        rows,
        Pager.of(request, offset, PAGE_ROWS, rows.total) if rows else None,
        crumbs_of(here, wanted),
        level,
        [(each, _deeper(here, wanted, level, each.value)) for each in found[:_MOST_GROUPS]],
        max(0, len(found) - _MOST_GROUPS),
        groups,
        _fields(table, wanted),
        {name: wanted[name] for name in _LEVELS if name in wanted},
    )
    return await page(request, "audit_table.html.j2", view=view, title=title)


def next_level(table: str, wanted: Mapping[str, str]) -> str | None:
    """Return the level below the chosen ones, by which rows are counted."""
    if table == "unattributed":
        return None
    chosen = [place for place, level in enumerate(_LEVELS) if level in wanted]
    return next(iter(_LEVELS[chosen[-1] + 1 :] if chosen else _LEVELS), None)


def crumbs_of(here: str, wanted: Mapping[str, str]) -> list[Crumb]:
    """Return the breadcrumbs to these rows; each keeps the filters that are not levels."""
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
    return [Field(name, _FILTERS[name], wanted.get(name)) for name in _SHOWN_FILTERS.get(table, ())]


def _address(here: str, parameters: Mapping[str, str]) -> str:
    return f"{here}?{urlencode(parameters)}" if parameters else here


# --- one ledger ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LedgerView:
    """An audit's findings on a ledger; ``searched`` is True if its dump was searched for references."""

    audit_id: str
    place: str
    found: LedgerInAudit
    searched: bool
    command: str


@router.get(f"{PATH}/{{audit_id}}/ledger")
async def ledger(request: Request, audit_id: str) -> Response:
    text, searched = request.query_params.get("id", ""), request.query_params.get("references") == "true"
    ledger_id = parse_ledger_id(text.strip())
    if ledger_id is None:
        raise InvalidInputError(f"{text[:100]!r} is not a ledger id: enter a number")
    reading, audit = await asyncio.gather(
        ask.read(
            request,
            f"{_path(audit_id)}/ledgers/{ledger_id}",
            {"references": "true"} if searched else None,
            keep_seconds=_KEEP_SECONDS,
        ),
        ask.read(request, _path(audit_id), keep_seconds=_KEEP_SECONDS),
    )
    found, directory = reading.answer(LedgerInAudit), audit.answer(AuditDetails).directory
    options = ["--dump", found.dump] if searched and found.dump else []
    words = command("audit", "explain", directory, str(ledger_id), *options)
    view = LedgerView(audit_id, _place(audit_id), found, searched, words)
    return await page(request, "audited_ledger.html.j2", view=view, title=f"Ledger {ledger_id}")


# --- actions -------------------------------------------------------------------------------------------------------


@router.post(f"{PATH}/{{audit_id}}/apply")
async def apply(request: Request, audit_id: str) -> Response:
    form = await form_of(request)
    plan = form.get("plan", "")
    confirmed(form, plan)
    body: dict[str, object] = {"plan": plan, "maxAgeHours": _number(form, "hours")}
    if form.get("rate"):
        body["rate"] = _number(form, "rate")
    return await act(
        request,
        "POST",
        f"{_path(audit_id)}/application",
        body,
        back=_place(audit_id),
        done=_is_applied,
        kind=PlanApplication,
    )


def _is_applied(application: PlanApplication) -> str:
    return f"The plan of {format_count(application.rows, 'ledger')} is {application.state}."


def _number(form: Mapping[str, str], name: str) -> float:
    try:
        return float(form.get(name, ""))
    except ValueError as error:
        raise InvalidInputError(f"{form.get(name, '')[:50]!r} is not a number of {name}") from error


def _path(audit_id: str) -> str:
    return ask.path(_AUDITS, audit_id)


def _place(audit_id: str) -> str:
    return ask.path(PATH, audit_id)


def _overview(reading: ask.Reading) -> Shown:
    audits = reading.parsed(Audits)
    if audits is None:
        return Shown()
    concerns = [Concern("warn", "Unreadable audit", each.reason, PATH) for each in audits.unreadable]
    if not audits.audits:
        return Shown(concerns)
    newest = audits.audits[0]
    kind, href = VERDICT_KINDS[newest.verdict.value], f"{PATH}/{newest.audit_id}"
    if kind != "good":
        concerns.append(Concern(kind, f"Audit: {newest.verdict.value}", newest.sentence, href))
    figure = Figure("Newest audit", newest.verdict.value, href, kind, f"as of {format_time(newest.as_of_ms)}")
    return Shown(concerns, [figure])


OVERVIEW = OverviewPart("Audits", _AUDITS, _overview, {"limit": 1}, _KEEP_SECONDS)
