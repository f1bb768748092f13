"""Whether brokers deduplicate in a namespace, found out on a topic of the sidecar's own."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import BeforeValidator

from pulsar_sidecar.api.paths import NAMESPACE_PATH, V2Namespace
from pulsar_sidecar.api.rooms.deduplication_policies import PolicyValuesAnswer
from pulsar_sidecar.api.schemas import Answer, Reason, Text
from pulsar_sidecar.deduplication.inspection.canary import (
    CheckOutcome,
    DeduplicationChecks,
    DuplicateReceipt,
    SendFailure,
)


def _written(answer: object) -> object:
    match answer:
        case DuplicateReceipt():
            return "duplicate"
        case SendFailure():
            return f"error: {answer.reason}"
        case _:
            return str(answer)


_SendAnswer = Annotated[str, BeforeValidator(_written)]


class DeduplicationCheckAnswer(Answer):
    """What a broker did with two messages under one sequence id."""

    namespace: str
    topic: Text
    """The check's own topic, which is gone unless ``leftBehind`` has a reason."""
    outcome: CheckOutcome
    reason: str
    policy: PolicyValuesAnswer
    """The policy that should decide it."""
    as_configured: bool
    """Whether the broker did what the policy demands."""
    status: str | None
    """The topic's ``deduplicationStatus``."""
    first: _SendAnswer
    """``ledgerId:entryId``, ``duplicate`` or an error."""
    second: _SendAnswer
    left_behind: str | None


def router(checks: DeduplicationChecks) -> APIRouter:
    """The route."""
    routes = APIRouter(tags=["deduplication"], responses={"default": {"model": Reason}})

    @routes.post(f"{NAMESPACE_PATH}/deduplication/check")
    def check_deduplication(namespace: V2Namespace) -> DeduplicationCheckAnswer:
        """Publish twice under one sequence id to a new topic of the namespace, observe the broker, delete the topic.

        No existing topic is touched. 404: no such namespace.
        """
        return DeduplicationCheckAnswer.model_validate(checks.check(namespace))

    return routes
