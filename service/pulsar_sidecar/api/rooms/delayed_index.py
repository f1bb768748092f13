"""Delayed indexes (PIP-195) on Pulsar's own paths: what brokers keep of delayed messages in buckets."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import BeforeValidator, Field

from pulsar_sidecar.api.paths import TOPIC_PATHS, V2_PATH, SubscriptionName, V2Topic
from pulsar_sidecar.api.schemas import Answer, Reason, Text
from pulsar_sidecar.api.schemas import Query as Parameters
from pulsar_sidecar.delayed_delivery.index.service import DelayedIndexService
from pulsar_sidecar.delayed_delivery.index.show import IndexView, Tracker
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.names import TopicName

_State = Annotated[str | None, BeforeValidator(lambda state: state.name if isinstance(state, LedgerState) else state)]
_Position = Annotated[str | None, BeforeValidator(lambda it: str(it) if isinstance(it, Position) else it)]


class DelayedIndexParameters(Parameters):
    """Parameters of ``delayedIndex``."""

    ask_broker: bool = False
    """Have the broker that has the topic loaded show its statistics, to know which tracker it runs; loads nothing."""


class TrackerAnswer(Answer):
    """A tracker, and why it is known or why not."""

    tracker: Tracker
    """What holds delayed messages back."""
    reason: str
    """What says so."""


class SegmentAnswer(Answer):
    """One segment of a bucket, by the bucket's metadata; times in milliseconds since the epoch."""

    entry: int
    """Its entry in the bucket's ledger."""
    first_due_ms: int
    """The earliest due time."""
    last_due_ms: int
    """The latest due time."""
    indexes: int
    """Messages that it holds."""
    left: int | None
    """Of them, those that are not acknowledged; null if the acknowledgements are unknown."""


class BucketAnswer(Answer):
    """One bucket."""

    name: str
    """The cursor property that points to it."""
    start_ledger_id: int | None
    """The first ledger that it covers; null if the name does not say."""
    end_ledger_id: int | None
    """The last ledger that it covers; null if the name does not say."""
    ledger_id: int
    """The ledger that it is stored in."""
    state: _State
    """That ledger's state; null if it is gone or cannot be read."""
    size_bytes: int | None
    """Bytes of that ledger; null while they are not known."""
    indexes: int | None
    """Messages in all segments; null if they are unknown."""
    left: int | None
    """Of them, those that are not acknowledged; null if that is unknown."""
    done: int | None
    """Of them, those that are acknowledged."""
    first_due_ms: int | None
    """The earliest due time."""
    last_due_ms: int | None
    """The latest due time."""
    problem: str | None
    """Why something of it is missing or not known; null if nothing is."""
    segments: list[SegmentAnswer] | None
    """In order; null if the bucket's metadata could not be read."""


class DelayedIndexAnswer(Answer):
    """The delayed index of one subscription of one topic, or of one partition (PIP-195)."""

    topic: Text
    """The topic, or the partition."""
    subscription: str
    """The subscription."""
    mark_delete_position: _Position = Field(validation_alias="mark_delete")
    """Everything up to here is acknowledged, as stored; null if that is unknown."""
    configured: TrackerAnswer
    """What the owning broker, or any broker if none owns the topic, is configured to run."""
    running: TrackerAnswer
    """What the subscription runs on now."""
    next_load: TrackerAnswer
    """What it will run on when the topic is loaded next."""
    unreadable: int
    """Buckets that are in none of the following counts, because their metadata could not be read."""
    indexes: int
    """Messages in all other buckets."""
    left: int | None
    """Of them, those that are not acknowledged; null if the acknowledgements are unknown."""
    done: int | None
    """Of them, those that are acknowledged."""
    size_bytes: int
    """Bytes of all buckets whose size is known."""
    problem: str | None
    """Why the subscription, or what it has acknowledged, could not be read; null if it could."""
    buckets: list[BucketAnswer]
    """In order of the ledgers that they cover."""


def router(service: DelayedIndexService) -> APIRouter:
    """The routes of the room."""
    routes = APIRouter(tags=["delayed index"], responses={"default": {"model": Reason}})
    _add_show(routes, service)
    return routes


def _add_show(routes: APIRouter, service: DelayedIndexService) -> None:
    def answers(views: list[IndexView]) -> list[DelayedIndexAnswer]:
        return [DelayedIndexAnswer.model_validate(view) for view in views]

    for path, topic_of, version in TOPIC_PATHS:

        @routes.get(f"{path}/subscription/{{subscription}}/delayedIndex", name=f"{version}delayed_index")
        def delayed_index(
            topic: Annotated[TopicName, Depends(topic_of)],
            subscription: SubscriptionName,
            parameters: Annotated[DelayedIndexParameters, Query()],
        ) -> list[DelayedIndexAnswer]:
            """What the delayed index of a subscription holds, read from the metadata store and the bookies.

            One answer for each partition. The topic is not loaded. 404: no such topic, or no such subscription.
            """
            return answers(service.show(topic, subscription, ask_broker=parameters.ask_broker))

    @routes.get(f"{V2_PATH}/delayedIndex")
    def delayed_indexes(
        topic: V2Topic, parameters: Annotated[DelayedIndexParameters, Query()]
    ) -> list[DelayedIndexAnswer]:
        """The same for all durable subscriptions of a topic."""
        return answers(service.show(topic, ask_broker=parameters.ask_broker))
