"""What waits in topics' backlogs."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from service.api.paths import persistent_topic, persistent_v1_topic
from service.api.schemas import Reason
from service.api.waiting_schemas import WaitingPageAnswer, WaitingParameters, waiting_answer
from service.delayed_delivery.waiting import WaitingMessages, parse_place
from service.model.names import TopicName

_Tenant = Annotated[str, Path(description="Tenant, URL-encoded.", examples=["public"])]
_Cluster = Annotated[str, Path(description="Cluster of a V1 namespace, URL-encoded.", examples=["standalone"])]
_Namespace = Annotated[str, Path(description="Namespace without its tenant, URL-encoded.", examples=["default"])]
_Topic = Annotated[str, Path(description="The topic's own name, URL-encoded.", examples=["orders"])]
_Asked = Annotated[WaitingParameters, Query()]


def router(service: WaitingMessages) -> APIRouter:
    """The routes of reading delayed messages."""
    routes = APIRouter(tags=["delayed messages"], responses={"default": {"model": Reason}})

    @routes.get("/admin/v2/persistent/{tenant}/{namespace}/{topic}/delayedMessages")
    def delayed_messages(
        tenant: _Tenant, namespace: _Namespace, topic: _Topic, parameters: _Asked
    ) -> WaitingPageAnswer:
        """What waits, counted by due time, in the next so many entries of the backlog; nothing is changed.

        As long as ``after`` is not null, the backlog goes on; add the answers up. 404: no such topic or subscription.
        """
        return _page(service, persistent_topic(tenant, namespace, topic), parameters)

    @routes.get("/admin/persistent/{property}/{cluster}/{namespace}/{topic}/delayedMessages")
    def v1_delayed_messages(
        property: _Tenant,  # Pulsar's word for a tenant in V1 paths
        cluster: _Cluster,
        namespace: _Namespace,
        topic: _Topic,
        parameters: _Asked,
    ) -> WaitingPageAnswer:
        """The same for a topic of a V1 namespace."""
        return _page(service, persistent_v1_topic(property, cluster, namespace, topic), parameters)

    return routes


def _page(service: WaitingMessages, topic: TopicName, parameters: WaitingParameters) -> WaitingPageAnswer:
    after = None if parameters.after is None else parse_place(parameters.after)
    return waiting_answer(service.waiting(topic, parameters.subscription, after, parameters.limit))
