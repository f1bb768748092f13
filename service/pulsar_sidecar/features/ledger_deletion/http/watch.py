"""Routes of the watch for leaked ledgers.

Only the watching sidecar lists and explains leaks, so the others redirect to it; any sidecar serves everything else.
"""

from typing import Annotated, TypeVar
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field
from starlette.responses import Response

from pulsar_sidecar.features.ledger_deletion.results import Redirect
from pulsar_sidecar.features.ledger_deletion.watch.results import (
    Leak,
    LeakCause,
    LeakState,
    LedgerExplanation,
    ListedLeaks,
    WatchOrders,
    WatchStatus,
)
from pulsar_sidecar.features.ledger_deletion.workflow.serving import LedgerDeletion
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, LedgerId
from pulsar_sidecar.server import schemas
from pulsar_sidecar.server.guard import Owners
from pulsar_sidecar.server.rights import Right, takes

_T = TypeVar("_T")
_LedgerId = Annotated[
    int, Path(alias="ledgerId", ge=0, le=MAX_LEDGER_ID, description="BookKeeper's ledger id.", examples=[4711])
]
_Hold = Annotated[str, Field(min_length=1, max_length=8192, examples=["public/default"])]
_REDIRECTS: dict[int | str, dict[str, object]] = {
    307: {"description": "Send the request to the sidecar that Location names."}
}


class LeaksParameters(schemas.Parameters):
    """Filters of the list."""

    state: LeakState | None = None
    """Only ledgers in this state."""
    cause: LeakCause | None = None
    """Only leaks of this cause."""
    ended: bool = False
    """Include ledgers that were deleted or linked again, as the states ``deleted`` and ``linked`` always do."""
    limit: int = Field(default=100, ge=1, le=10_000)
    """Maximum number of ledgers, oldest first."""
    offset: int = Field(default=0, ge=0, le=1_000_000_000)
    """Number of ledgers to skip."""


class HoldParameters(schemas.Parameters):
    """Hold to remove."""

    hold: _Hold
    """A hold as the list shows it."""


class AppendParameters(schemas.Parameters):
    """Copy of the ledger to append."""

    offload_attempt: UUID | None = None
    """Offload attempt that made the copy; by default BookKeeper's copy, or the only one that leaked."""


class BrakeRequest(schemas.Payload):
    """Engagement of the brake."""

    reason: str = Field(min_length=1, max_length=1_000, examples=["maintenance of the metadata store"])


class HoldRequest(schemas.Payload):
    """Ledgers that are never appended."""

    hold: _Hold
    """A ledger's id, a tenant, a namespace (``tenant/namespace``) or a topic's full name."""


def add_watch(routes: APIRouter, service: LedgerDeletion) -> None:
    @routes.get("/ledger-deletion/watch")
    @takes(Right.CLUSTER_STATE)
    def watch_status() -> WatchStatus:
        """Return the state of the watch for leaked ledgers, as this sidecar knows it, even while it is off."""
        return service.watch.status()

    @routes.get("/ledger-deletion/watch/leaks", response_model=ListedLeaks, responses=_REDIRECTS)
    @takes(Right.CLUSTER_STATE)
    def leaked_ledgers(parameters: Annotated[LeaksParameters, Query()], request: Request) -> ListedLeaks | Response:
        """List the ledgers that nothing references and no broker has deleted, oldest first.

        307: call the sidecar that watches. 405: this sidecar's watch is switched off. 503: no sidecar is watching yet.
        """
        listed = service.watch.leaks(
            state=parameters.state,
            cause=parameters.cause,
            ended=parameters.ended,
            limit=parameters.limit,
            offset=parameters.offset,
        )
        return _answer(listed, request)

    @routes.get("/ledger-deletion/watch/leaks/{ledgerId}", response_model=LedgerExplanation, responses=_REDIRECTS)
    @takes(Right.OWNED_STATE)
    def explain_leaked_ledger(ledger_id: _LedgerId, request: Request, owners: Owners) -> LedgerExplanation | Response:
        """Explain one ledger, leaked or not: its references, its owner, its leak and the current decision.

        307: call the sidecar that watches. 405: this sidecar's watch is switched off. 503: no sidecar is watching yet.
        """
        owners.require(lambda: service.tenants_of([LedgerId(ledger_id)]))
        return _answer(service.watch.explain(LedgerId(ledger_id)), request)

    @routes.post(
        "/ledger-deletion/watch/leaks/{ledgerId}/append", status_code=202, response_model=Leak,
        responses=_REDIRECTS, response_description="The ledger is in the pending-deletion topic.",
    )  # fmt: skip
    @takes(Right.CLUSTER_CHANGE)
    def append_leaked_ledger(
        ledger_id: _LedgerId, parameters: Annotated[AppendParameters, Query()], request: Request
    ) -> Leak | Response:
        """Append a leaked ledger to the pending-deletion topic even if ``ledgerDeletionWatch=report``.

        The watch evaluates it once more and appends it if it is still deletable, which takes seconds; then it responds.
        The second phase checks it again. 307: call the sidecar that watches. 404: the ledger is not among those
        that nothing references. 409: it is not leaked, it is held, or the brake is engaged. 503: it was not
        appended, such as when another sidecar begins to watch; retry the request.
        """
        return _answer(service.watch.append(LedgerId(ledger_id), parameters.offload_attempt), request)

    @routes.post("/ledger-deletion/watch/brake")
    @takes(Right.CLUSTER_CHANGE)
    def brake_watch(brake: BrakeRequest) -> WatchOrders:
        """Engage the brake: append nothing until an operator resumes; an earlier reason stays."""
        return service.watch.brake(brake.reason)

    @routes.post("/ledger-deletion/watch/resume")
    @takes(Right.CLUSTER_CHANGE)
    def resume_watch() -> WatchOrders:
        """Resume appending leaked ledgers: release the brake."""
        return service.watch.resume()

    @routes.get("/ledger-deletion/watch/holds")
    @takes(Right.CLUSTER_STATE)
    def watch_holds() -> WatchOrders:
        """Return the hold list and the brake."""
        return service.watch.control()

    @routes.post("/ledger-deletion/watch/holds")
    @takes(Right.CLUSTER_CHANGE)
    def add_watch_hold(hold: HoldRequest) -> WatchOrders:
        """Add a hold: never append the ledgers of a topic, namespace or tenant, or one ledger. Idempotent."""
        return service.watch.hold(hold.hold)

    @routes.delete("/ledger-deletion/watch/holds")
    @takes(Right.CLUSTER_CHANGE)
    def remove_watch_hold(parameters: Annotated[HoldParameters, Query()]) -> WatchOrders:
        """Remove a hold; 404 if there is none."""
        return service.watch.release_hold(parameters.hold)


def _answer(found: _T | Redirect, request: Request) -> _T | Response:
    if not isinstance(found, Redirect):
        return found
    query = request.scope["query_string"].decode("latin-1")
    location = f"{found.base_url.rstrip('/')}{request.scope['path']}{'?' if query else ''}{query}"
    return Response(status_code=307, headers={"Location": location})
