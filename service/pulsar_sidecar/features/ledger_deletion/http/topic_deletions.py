"""Routes that list, follow and abandon topic deletions; any sidecar answers, whichever drives the deletion."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, TypeVar, assert_never

from fastapi import APIRouter, Path, Request
from starlette.responses import JSONResponse, Response

from pulsar_sidecar.features.ledger_deletion.results import FollowedDeletion, OperationState, TopicDeletionStatus
from pulsar_sidecar.features.ledger_deletion.workflow.serving import LedgerDeletion
from pulsar_sidecar.model.errors import ConflictError
from pulsar_sidecar.model.ids import OperationId
from pulsar_sidecar.server.answers import as_json
from pulsar_sidecar.server.guard import Owners
from pulsar_sidecar.server.rights import Right, takes
from pulsar_sidecar.server.warnings import warning_headers

Endpoint = TypeVar("Endpoint", bound=Callable[..., Response])

_PATH = "/ledger-deletion/topic-deletions"
_ACCEPTED = 202
_OperationId = Annotated[
    str,
    Path(
        alias="operationId",
        pattern=r"^[-_A-Za-z0-9]{1,100}$",
        description="The operationId of the deletion.",
        examples=["0c2f4c1e9b7d4f0f8a55a1c1b0a3d9e2"],
    ),
]


def deletions_of(routes: APIRouter, answer: type[object]) -> Callable[..., Callable[[Endpoint], Endpoint]]:
    """Declare at a path a DELETE that answers 204, or 202 with ``answer`` while the sidecars continue."""
    continued = {"model": answer, "description": "The sidecars continue the deletion; Location follows it."}
    return partial(routes.delete, status_code=204, response_description="Deleted.", responses={_ACCEPTED: continued})


def accepted(status: object, kind: type[object], location: str) -> Response:
    """Return 202 for a deletion that the sidecars continue."""
    return JSONResponse(as_json(status, kind), _ACCEPTED, {"Location": location})


def answer_of(status: TopicDeletionStatus) -> Response:
    """Return 204 for a deletion that is done, 202 for one that runs; one that ended otherwise is a `ConflictError`."""
    match status.state:
        case OperationState.DONE:
            return Response(status_code=204, headers=warning_headers([status.reason] if status.reason else []))
        case OperationState.RUNNING | OperationState.STUCK | OperationState.UNREADABLE:
            return accepted(status, TopicDeletionStatus, f"/admin/v2{_PATH}/{status.operation_id}")
        case OperationState.REFUSED | OperationState.ABANDONED:
            raise ConflictError(f"the deletion of {status.subject} was refused: {status.reason}")
        case _:
            assert_never(status.state)


def add_topic_deletions(routes: APIRouter, service: LedgerDeletion) -> None:
    """Add the list, one deletion, and its end."""

    @routes.get(_PATH)
    @takes(Right.CLUSTER_STATE)
    def topic_deletions() -> list[TopicDeletionStatus]:
        """List the running two-phase topic deletions."""
        return service.topic_deletions()

    @routes.get(f"{_PATH}/{{operationId}}")
    @takes(Right.OWNED_STATE)
    def topic_deletion(operation_id: _OperationId, owners: Owners) -> FollowedDeletion:
        """Return one topic deletion: its progress and remaining ledgers, or its outcome in the last 10 minutes.

        404: it is not running, and its end is not known.
        """
        found = service.topic_deletion(OperationId(operation_id))
        owners.require(lambda: [_tenant(found)])
        return found

    @routes.post(f"{_PATH}/{{operationId}}/abandon")
    @takes(Right.OWNED_CHANGE)
    def abandon_topic_deletion(operation_id: _OperationId, request: Request, owners: Owners) -> FollowedDeletion:
        """End a topic deletion, even if this version cannot read it; the answer names what is left.

        The sidecars send brokers no further requests. They evaluate the records as usual, so referenced ledgers stay.
        404: it is not running.
        """
        owners.require(lambda: [_tenant(service.topic_deletion(OperationId(operation_id)))])
        return service.abandon_topic_deletion(OperationId(operation_id), asked_by=request.state.caller.role)


def _tenant(found: FollowedDeletion) -> str | None:
    topic = found.topic_name
    return None if topic is None else topic.tenant
