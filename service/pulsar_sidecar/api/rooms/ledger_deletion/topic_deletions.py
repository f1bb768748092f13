"""The routes and the JSON of topic deletions that run: who follows one, and who ends one.

Any sidecar answers, whichever drives the deletion. Times are milliseconds since the epoch.
"""

from collections.abc import Callable
from typing import Annotated, Protocol, TypeVar, assert_never

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from pulsar_sidecar.api.guard import Owners
from pulsar_sidecar.api.rights import Right, takes
from pulsar_sidecar.api.rooms.ledger_deletion.schemas import TopicDeletionAnswer
from pulsar_sidecar.ledger_deletion.service import FollowedDeletion, OperationState, TopicDeletionStatus
from pulsar_sidecar.ledger_deletion.workflow.serving import LedgerDeletion
from pulsar_sidecar.model.errors import ConflictError
from pulsar_sidecar.model.ids import OperationId

Endpoint = TypeVar("Endpoint", bound=Callable[..., Response])

PATH = "/ledger-deletion/topic-deletions"
ACCEPTED = 202
_OperationId = Annotated[
    str,
    Path(
        alias="operationId",
        pattern=r"^[-_A-Za-z0-9]{1,100}$",
        description="The operationId of the deletion.",
        examples=["0c2f4c1e9b7d4f0f8a55a1c1b0a3d9e2"],
    ),
]


class FollowedDeletionAnswer(TopicDeletionAnswer):
    """A topic deletion with what it has left."""

    driver: str | None
    """The sidecar that works on it now."""
    left_nodes: list[str] | None
    """Nodes of the topic that still exist; null if that is not known, or it has ended."""
    left_ledgers: int | None
    """Number of recorded ledgers that BookKeeper still has; null as for the nodes."""
    left_ledger_ids: list[int] | None
    """The first thousand of them."""
    ended_ms: int | None
    """When it ended; null while it runs."""
    abandoned_by: str | None
    """Who abandoned it, where the sidecar asks for tokens."""


def location_of(operation_id: OperationId) -> str:
    """Where one deletion can be followed."""
    return f"/admin/v2{PATH}/{operation_id}"


class Declared(Protocol):
    """What `deletions_of` answers; ``name`` is the route's, else the endpoint's own."""

    def __call__(self, path: str, *, name: str | None = None) -> Callable[[Endpoint], Endpoint]: ...


def deletions_of(routes: APIRouter, answer: type[BaseModel]) -> Declared:
    """Declares at a path a DELETE that answers 204, or 202 with ``answer`` while the sidecars continue."""

    def at(path: str, *, name: str | None = None) -> Callable[[Endpoint], Endpoint]:
        continued = {"model": answer, "description": "The sidecars continue the deletion; Location follows it."}
        return routes.delete(
            path, status_code=204, name=name, response_description="Deleted.", responses={ACCEPTED: continued}
        )

    return at


def answer_of(status: TopicDeletionStatus) -> Response:
    """Return 204 for a deletion that is done, 202 for one that runs; one that ended otherwise is a `ConflictError`."""
    match status.state:
        case OperationState.DONE:
            return Response(status_code=204)
        case OperationState.RUNNING | OperationState.STUCK | OperationState.UNREADABLE:
            answer = TopicDeletionAnswer.model_validate(status).model_dump(mode="json")
            return JSONResponse(answer, ACCEPTED, {"Location": location_of(status.operation_id)})
        case OperationState.REFUSED | OperationState.ABANDONED:
            raise ConflictError(f"the deletion of {status.subject} was refused: {status.reason}")
        case _:
            assert_never(status.state)


def add_topic_deletions(routes: APIRouter, service: LedgerDeletion) -> None:
    """The list, one of it, and the end of one."""

    @routes.get(PATH)
    @takes(Right.CLUSTER_STATE)
    def topic_deletions() -> list[TopicDeletionAnswer]:
        """The two-phase topic deletions that are running now."""
        return [TopicDeletionAnswer.model_validate(deletion) for deletion in service.topic_deletions()]

    @routes.get(f"{PATH}/{{operationId}}")
    @takes(Right.OWNED_STATE)
    def topic_deletion(operation_id: _OperationId, owners: Owners) -> FollowedDeletionAnswer:
        """One topic deletion: its state, what it waits for, what it has left; or how it ended in the last 10 minutes.

        404: it does not run, and its end is not known.
        """
        followed = service.topic_deletion(OperationId(operation_id))
        owners.require(lambda: [_tenant(followed)])
        return _answer(followed)

    @routes.post(f"{PATH}/{{operationId}}/abandon")
    @takes(Right.OWNED_CHANGE)
    def abandon_topic_deletion(operation_id: _OperationId, request: Request, owners: Owners) -> FollowedDeletionAnswer:
        """End a topic deletion, also one that this version cannot read; the answer names what is left.

        No sidecar asks a broker any more. What was recorded is judged as ever: a ledger that is still referenced stays.
        404: it does not run.
        """
        owners.require(lambda: [_tenant(service.topic_deletion(OperationId(operation_id)))])
        return _answer(service.abandon_topic_deletion(OperationId(operation_id), asked_by=request.state.caller.role))


def _tenant(followed: FollowedDeletion) -> str | None:
    topic = followed.status.topic
    return None if topic is None else topic.tenant


def _answer(followed: FollowedDeletion) -> FollowedDeletionAnswer:
    left = followed.remains
    return FollowedDeletionAnswer(
        **TopicDeletionAnswer.model_validate(followed.status).model_dump(by_alias=False),
        driver=followed.driver,
        left_nodes=None if left is None else list(left.nodes),
        left_ledgers=None if left is None else left.ledgers,
        left_ledger_ids=None if left is None else list(left.ledger_ids),
        ended_ms=followed.ended_ms,
        abandoned_by=followed.abandoned_by,
    )
