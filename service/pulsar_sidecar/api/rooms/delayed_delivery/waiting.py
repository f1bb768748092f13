"""What waits in topics' backlogs."""

from typing import Annotated

from fastapi import APIRouter, Query

from pulsar_sidecar.api.paths import Cluster, Namespace, Tenant, Topic, persistent_topic, persistent_v1_topic
from pulsar_sidecar.api.rooms.delayed_delivery.waiting_schemas import (
    WaitingPageAnswer,
    WaitingParameters,
    waiting_answer,
)
from pulsar_sidecar.api.schemas import Reason
from pulsar_sidecar.delayed_delivery.waiting import WaitingReader, parse_backlog_position
from pulsar_sidecar.model.names import TopicName

_Asked = Annotated[WaitingParameters, Query()]


def router(service: WaitingReader) -> APIRouter:
    """The routes of reading delayed messages."""
    routes = APIRouter(tags=["delayed messages"], responses={"default": {"model": Reason}})

    @routes.get("/admin/v2/persistent/{tenant}/{namespace}/{topic}/delayedMessages")
    def delayed_messages(tenant: Tenant, namespace: Namespace, topic: Topic, parameters: _Asked) -> WaitingPageAnswer:
        """What waits, counted by due time, in the next so many entries of the backlog; nothing is changed.

        As long as ``after`` is not null, the backlog goes on; add the answers up. 404: no such topic or subscription.
        """
        return _page(service, persistent_topic(tenant, namespace, topic), parameters)

    @routes.get("/admin/persistent/{property}/{cluster}/{namespace}/{topic}/delayedMessages")
    def v1_delayed_messages(
        property: Tenant,  # Pulsar's word for a tenant in V1 paths
        cluster: Cluster,
        namespace: Namespace,
        topic: Topic,
        parameters: _Asked,
    ) -> WaitingPageAnswer:
        """The same for a topic of a V1 namespace."""
        return _page(service, persistent_v1_topic(property, cluster, namespace, topic), parameters)

    return routes


def _page(service: WaitingReader, topic: TopicName, parameters: WaitingParameters) -> WaitingPageAnswer:
    after = None if parameters.after is None else parse_backlog_position(parameters.after)
    return waiting_answer(service.waiting(topic, parameters.subscription, after, parameters.limit))
