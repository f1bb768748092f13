"""Acknowledgement states (PIP-299), and the policy that pauses dispatch, on Pulsar's own paths."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from pulsar_sidecar.ack_state.judging import DetailOptions
from pulsar_sidecar.ack_state.pausing import TopicPolicy
from pulsar_sidecar.ack_state.workflow.service import AckStateService
from pulsar_sidecar.api.paths import V1_PATH, V2_PATH, SubscriptionName, V1Topic, V2Namespace, V2Topic
from pulsar_sidecar.api.rooms.ack_state.schemas import (
    AckStateAnswer,
    AckStateParameters,
    PauseParameters,
    PauseRemovalAnswer,
    PauseRemovalParameters,
    ack_state_answer,
)
from pulsar_sidecar.api.schemas import Reason
from pulsar_sidecar.model.names import TopicName

_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
_POLICY = "dispatcherPauseOnAckStatePersistent"
_Wished = Annotated[AckStateParameters, Query()]


def router(service: AckStateService) -> APIRouter:
    """The routes of the room."""
    routes = APIRouter(tags=["acknowledgement states"], responses={"default": {"model": Reason}})
    _add_states(routes, service)
    _add_topic_policy(routes, service)
    _add_namespace_policy(routes, service)
    return routes


def _add_states(routes: APIRouter, service: AckStateService) -> None:
    @routes.get(f"{V2_PATH}/subscription/{{subscription}}/ackState")
    def ack_state(topic: V2Topic, subscription: SubscriptionName, parameters: _Wished) -> list[AckStateAnswer]:
        """How full a subscription's acknowledgement state is, what of it is stored, and what would come again.

        One answer for each partition. 404: no such topic, or no such subscription.
        """
        return _states(service, topic, subscription, parameters)

    @routes.get(f"{V2_PATH}/ackState")
    def ack_states(topic: V2Topic, parameters: _Wished) -> list[AckStateAnswer]:
        """The same for all durable subscriptions of a topic."""
        return _states(service, topic, None, parameters)

    @routes.get(f"{V1_PATH}/subscription/{{subscription}}/ackState")
    def v1_ack_state(topic: V1Topic, subscription: SubscriptionName, parameters: _Wished) -> list[AckStateAnswer]:
        """How full a subscription's acknowledgement state is, for a topic of a V1 namespace."""
        return _states(service, topic, subscription, parameters)


def _states(
    service: AckStateService, topic: TopicName, subscription: str | None, parameters: AckStateParameters
) -> list[AckStateAnswer]:
    options = DetailOptions(ranges=parameters.ranges, stretches=parameters.stretches)
    return [ack_state_answer(state) for state in service.ack_states(topic, subscription, options)]


def _add_topic_policy(routes: APIRouter, service: AckStateService) -> None:
    @routes.get(f"{V2_PATH}/{_POLICY}")
    def topic_pause(topic: V2Topic, parameters: Annotated[PauseParameters, Query()]) -> bool | None:
        """Whether dispatch pauses when acknowledgements no longer fit; null if unknown."""
        policies = service.topic_pause(topic)
        return policies.enabled if parameters.applied else policies.topic is TopicPolicy.TRUE

    @routes.post(f"{V2_PATH}/{_POLICY}", status_code=204, response_description="Set to true.")
    def enable_topic_pause(topic: V2Topic) -> Response:
        """Pause dispatch of the topic's subscriptions when their acknowledgements no longer fit."""
        service.enable_topic_pause(topic)
        return Response(status_code=204)

    @routes.delete(f"{V2_PATH}/{_POLICY}")
    def remove_topic_pause(
        topic: V2Topic, parameters: Annotated[PauseRemovalParameters, Query()]
    ) -> PauseRemovalAnswer:
        """Remove the topic's own policy, as far as brokers can, and say what really happened.

        409: the broker would store a false that overrides the namespace's or the broker's true, and ``force`` is not
        given.
        """
        return PauseRemovalAnswer.model_validate(service.remove_topic_pause(topic, force=parameters.force))


def _add_namespace_policy(routes: APIRouter, service: AckStateService) -> None:
    @routes.get(f"{_NAMESPACE}/{_POLICY}")
    def namespace_pause(namespace: V2Namespace) -> bool | None:
        """What the namespace's policies say; null if they say nothing."""
        return service.namespace_pause(namespace)

    @routes.post(f"{_NAMESPACE}/{_POLICY}", status_code=204, response_description="Set to true.")
    def enable_namespace_pause(namespace: V2Namespace) -> Response:
        """Pause dispatch in the namespace when acknowledgements no longer fit, where no topic says otherwise."""
        service.enable_namespace_pause(namespace)
        return Response(status_code=204)

    @routes.delete(f"{_NAMESPACE}/{_POLICY}")
    def remove_namespace_pause(namespace: V2Namespace) -> PauseRemovalAnswer:
        """Remove the namespace's policy, so that its brokers' configuration counts again.

        Brokers up to 4.0.8 store false instead; that is then taken out of the namespace's policies.
        """
        return PauseRemovalAnswer.model_validate(service.remove_namespace_pause(namespace))
