"""What waits in topics' backlogs."""

from typing import Annotated

from fastapi import APIRouter, Query

from pulsar_sidecar.api.paths import V1_PATH, V2_PATH, V1Topic, V2Topic
from pulsar_sidecar.api.rooms.delayed_delivery.waiting_schemas import (
    WaitingPageAnswer,
    WaitingParameters,
    waiting_answer,
)
from pulsar_sidecar.api.schemas import Reason
from pulsar_sidecar.delayed_delivery.backlog import WaitingReader, parse_backlog_position
from pulsar_sidecar.model.names import TopicName

_Asked = Annotated[WaitingParameters, Query()]


def router(service: WaitingReader) -> APIRouter:
    """The routes of reading delayed messages."""
    routes = APIRouter(tags=["delayed messages"], responses={"default": {"model": Reason}})

    @routes.get(f"{V2_PATH}/delayedMessages")
    def delayed_messages(topic: V2Topic, parameters: _Asked) -> WaitingPageAnswer:
        """What waits, counted by due time, in the next so many entries of the backlog; nothing is changed.

        As long as ``after`` is not null, the backlog goes on; add the answers up. 404: no such topic or subscription.
        """
        return _page(service, topic, parameters)

    @routes.get(f"{V1_PATH}/delayedMessages")
    def v1_delayed_messages(
        topic: V1Topic,
        parameters: _Asked,
    ) -> WaitingPageAnswer:
        """The same for a topic of a V1 namespace."""
        return _page(service, topic, parameters)

    return routes


def _page(service: WaitingReader, topic: TopicName, parameters: WaitingParameters) -> WaitingPageAnswer:
    after = None if parameters.after is None else parse_backlog_position(parameters.after)
    return waiting_answer(service.waiting(topic, parameters.subscription, after, parameters.limit))
