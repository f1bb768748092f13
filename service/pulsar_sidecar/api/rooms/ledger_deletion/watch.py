"""The routes and the JSON of the watch for leaked ledgers.

The list and the explanations are the watching sidecar's, so the others redirect to it; everything else any sidecar
answers. Times are milliseconds on the metadata store's clock.
"""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from pulsar_sidecar.api import schemas
from pulsar_sidecar.api.guard import Owners
from pulsar_sidecar.api.rights import Right, takes
from pulsar_sidecar.api.rooms.ledger_deletion.schemas import InstanceAnswer
from pulsar_sidecar.ledger_deletion.service import Redirect
from pulsar_sidecar.ledger_deletion.watch.evidence import LeakCause
from pulsar_sidecar.ledger_deletion.watch.service import LeakState, WatchMode, WatchState
from pulsar_sidecar.ledger_deletion.workflow.serving import LedgerDeletion
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, LedgerId

MAX_LEAKS = 10_000
_LedgerId = Annotated[
    int, Path(alias="ledgerId", ge=0, le=MAX_LEDGER_ID, description="BookKeeper's ledger id.", examples=[4711])
]
_Hold = Annotated[str, Field(min_length=1, max_length=8192, examples=["public/default"])]
_REDIRECTS: dict[int | str, dict[str, object]] = {307: {"description": "Ask the sidecar that Location names."}}


class LeaksParameters(schemas.Parameters):
    """Which ledgers to list."""

    state: LeakState | None = None
    """Only ledgers in this state."""
    cause: LeakCause | None = None
    """Only leaks of this cause."""
    ended: bool = False
    """Include ledgers that were deleted or linked again; the states ``deleted`` and ``linked`` do so, too."""
    limit: int = Field(default=100, ge=1, le=MAX_LEAKS)
    """Maximum number of ledgers, oldest first."""
    offset: int = Field(default=0, ge=0, le=1_000_000_000)
    """How many to leave out at the beginning."""


class HoldParameters(schemas.Parameters):
    """Which hold to remove."""

    hold: _Hold
    """A hold as the list shows it."""


class AppendParameters(schemas.Parameters):
    """Which copy of the ledger to append."""

    offload_attempt: UUID | None = None
    """The offload attempt that made the copy; BookKeeper's copy without it, or the only one that leaked."""


class BrakeRequest(schemas.Payload):
    """Why the watch is to append nothing."""

    reason: str = Field(min_length=1, max_length=1_000, examples=["maintenance of the metadata store"])


class HoldRequest(schemas.Payload):
    """Ledgers that are never appended."""

    hold: _Hold
    """A ledger's id, a tenant, a namespace (``tenant/namespace``) or a topic's full name."""


class WatchControlAnswer(schemas.Answer):
    """The brake and the hold list, which all sidecars share."""

    braked: str | None
    """Why nothing is appended until an operator resumes; null while the brake does not hold."""
    holds: list[str]
    """Ledgers, tenants, namespaces and topics that are never appended."""


class WatchStatusAnswer(schemas.Answer):
    """The state of the watch. Figures are null where this sidecar does not watch, or has not read everything yet."""

    mode: WatchMode
    """The setting ``ledgerDeletionWatch``; ``off`` where two-phase deletion is off."""
    state: WatchState
    """State of this sidecar's watch."""
    leader: InstanceAnswer | None
    """The sidecar that watches; only it knows the figures."""
    braked: str | None
    """Why nothing is appended until an operator resumes; null while the brake does not hold."""
    holds: list[str]
    """Ledgers, tenants, namespaces and topics that are never appended."""
    detail: str | None
    """What the watch waits for, or why it reads everything in turns."""
    walked_ms: int | None
    """When the last whole reading ended."""
    walk_seconds: float | None
    """How long it took."""
    lag_seconds: float | None
    """How long a change may have waited unread; null while the watch hears of none."""
    ledgers: int | None
    """Ledgers that exist."""
    references: int | None
    """References to ledgers in nodes."""
    unreadable: int | None
    """Nodes that could not be read or understood."""
    unreadable_nodes: list[str]
    """At most a hundred of them."""
    vanished: int | None
    """References that vanished within the last 10 minutes while their ledgers stayed."""
    brake_limit: int | None
    """Vanished references above which the brake holds."""
    unlinked: int | None
    """Ledgers that no node was ever seen to reference; compacted ledgers of loaded topics are among them."""
    leaks: dict[LeakState, int] | None
    """Unreferenced ledgers that still exist, by state."""
    leaked: dict[LeakCause, int] | None
    """Ledgers found leaked since this sidecar began to watch, by cause."""
    appended: int | None
    """Ledgers appended to the pending-deletion topic since this sidecar began to watch."""
    unsought_copies: dict[str, int] | None
    """Copies in tiered storage that lists no longer name and that the sidecar does not look for, by reason."""


class LeakAnswer(schemas.Answer):
    """A ledger, or its copy in tiered storage, that nothing references, or that was linked again."""

    ledger_id: int
    offload_attempt: UUID | None
    """UUID of the offload attempt whose copy in tiered storage it is; null for BookKeeper's copy."""
    state: LeakState
    cause: LeakCause | None
    """Why it lost its last reference; null until the sidecar has read the ledger's own metadata."""
    since_ms: int
    """When the watch saw that nothing references it (any more)."""
    detail: str
    """Why it is in this state."""
    topic: str | None
    path: str | None
    """The node that referenced it last; null if none ever did."""
    length_bytes: int | None
    appended_ms: int | None
    ended_ms: int | None


class LeakPeriodAnswer(schemas.Answer):
    """How many of the matching ledgers lost their last reference from a time until the next period's."""

    from_ms: int
    leaks: int


class LeaksAnswer(schemas.Answer):
    """Some leaks, and how many there are."""

    total: int
    """Number of matching ledgers, also of those beyond the limit."""
    by_cause: dict[str, int]
    """Matching ledgers by cause; ``unknown`` until the sidecar has read the ledger's own metadata."""
    trend: list[LeakPeriodAnswer]
    """Matching ledgers by time, in at most 48 periods of equal length."""
    leaks: list[LeakAnswer]
    """The oldest first."""


class ExplanationAnswer(schemas.Answer):
    """What the watch knows of one ledger."""

    ledger_id: int
    exists: bool
    named_by: list[str]
    """The nodes that reference it, as they were last read."""
    owner: str | None
    """The node that its own metadata names as its owner; null if this version does not know the kind."""
    hold: str | None
    """The hold that covers it."""
    verdict: str
    """What the second phase would decide now, and why."""
    leak: LeakAnswer | None
    """As in the list of leaks."""
    copies: list[LeakAnswer]
    """Leaks of its copies in tiered storage, oldest first."""


def add_watch(routes: APIRouter, service: LedgerDeletion) -> None:
    _add_leaks(routes, service)
    _add_control(routes, service)


def _add_leaks(routes: APIRouter, service: LedgerDeletion) -> None:
    @routes.get("/ledger-deletion/watch")
    @takes(Right.CLUSTER_STATE)
    def watch_status() -> WatchStatusAnswer:
        """The state of the watch for leaked ledgers, as this sidecar knows it; also while it is off."""
        return WatchStatusAnswer.model_validate(service.watch.status())

    @routes.get("/ledger-deletion/watch/leaks", response_model=LeaksAnswer, responses=_REDIRECTS)
    @takes(Right.CLUSTER_STATE)
    def leaked_ledgers(parameters: Annotated[LeaksParameters, Query()], request: Request) -> Response:
        """The ledgers that nothing references and no broker has deleted, oldest first.

        307: ask the sidecar that watches. 405: this sidecar's watch is switched off. 503: none watches yet.
        """
        listed = service.watch.leaks(
            state=parameters.state,
            cause=parameters.cause,
            ended=parameters.ended,
            limit=parameters.limit,
            offset=parameters.offset,
        )
        if isinstance(listed, Redirect):
            return _redirected(listed, request)
        by_cause = {"unknown" if cause is None else cause.value: count for cause, count in listed.by_cause.items()}
        return _json(
            LeaksAnswer(
                total=listed.total,
                by_cause=by_cause,
                trend=list(map(LeakPeriodAnswer.model_validate, listed.trend)),
                leaks=list(map(LeakAnswer.model_validate, listed.leaks)),
            )
        )

    @routes.get("/ledger-deletion/watch/leaks/{ledgerId}", response_model=ExplanationAnswer, responses=_REDIRECTS)
    @takes(Right.OWNED_STATE)
    def explain_leaked_ledger(ledger_id: _LedgerId, request: Request, owners: Owners) -> Response:
        """Everything that the watch knows of one ledger, whether it leaked or not.

        307: ask the sidecar that watches. 405: this sidecar's watch is switched off. 503: none watches yet.
        """
        owners.require(lambda: service.tenants_of([LedgerId(ledger_id)]))
        explained = service.watch.explain(LedgerId(ledger_id))
        if isinstance(explained, Redirect):
            return _redirected(explained, request)
        return _json(ExplanationAnswer.model_validate(explained))


def _add_control(routes: APIRouter, service: LedgerDeletion) -> None:
    @routes.post(
        "/ledger-deletion/watch/leaks/{ledgerId}/append", status_code=202, response_model=LeakAnswer,
        responses=_REDIRECTS, response_description="It is appended.",
    )  # fmt: skip
    @takes(Right.CLUSTER_CHANGE)
    def append_leaked_ledger(
        ledger_id: _LedgerId, parameters: Annotated[AppendParameters, Query()], request: Request
    ) -> Response:
        """Append a leaked ledger to the pending-deletion topic although ``ledgerDeletionWatch=report``.

        The watch judges it once more and appends it, if it is still deletable, which takes seconds; the answer comes
        then. The second phase checks it again. 307: ask the sidecar that watches. 404: the ledger is not among those
        that nothing references. 409: it is not leaked, it is held, or the brake holds. 503: it was not appended, such
        as when another sidecar begins to watch; order it again.
        """
        ordered = service.watch.append(LedgerId(ledger_id), parameters.offload_attempt)
        if isinstance(ordered, Redirect):
            return _redirected(ordered, request)
        return _json(LeakAnswer.model_validate(ordered), 202)

    @routes.post("/ledger-deletion/watch/brake")
    @takes(Right.CLUSTER_CHANGE)
    def brake_watch(brake: BrakeRequest) -> WatchControlAnswer:
        """Append nothing until an operator resumes; the reason of a brake that holds already stays."""
        return WatchControlAnswer.model_validate(service.watch.brake(brake.reason))

    @routes.post("/ledger-deletion/watch/resume")
    @takes(Right.CLUSTER_CHANGE)
    def resume_watch() -> WatchControlAnswer:
        """Release the brake: leaked ledgers are appended again."""
        return WatchControlAnswer.model_validate(service.watch.resume())

    @routes.get("/ledger-deletion/watch/holds")
    @takes(Right.CLUSTER_STATE)
    def watch_holds() -> WatchControlAnswer:
        """The hold list and the brake."""
        return WatchControlAnswer.model_validate(service.watch.control())

    @routes.post("/ledger-deletion/watch/holds")
    @takes(Right.CLUSTER_CHANGE)
    def add_watch_hold(hold: HoldRequest) -> WatchControlAnswer:
        """Never append the ledgers of a topic, namespace or tenant, or one ledger; repeating it changes nothing."""
        return WatchControlAnswer.model_validate(service.watch.hold(hold.hold))

    @routes.delete("/ledger-deletion/watch/holds")
    @takes(Right.CLUSTER_CHANGE)
    def remove_watch_hold(parameters: Annotated[HoldParameters, Query()]) -> WatchControlAnswer:
        """Remove a hold; 404 if there is none."""
        return WatchControlAnswer.model_validate(service.watch.unhold(parameters.hold))


def _json(answer: schemas.Answer, status: int = 200) -> JSONResponse:
    return JSONResponse(answer.model_dump(mode="json"), status)


def _redirected(redirect: Redirect, request: Request) -> Response:
    query = request.scope["query_string"].decode("latin-1")
    location = f"{redirect.base_url.rstrip('/')}{request.scope['path']}{'?' if query else ''}{query}"
    return Response(status_code=307, headers={"Location": location})
