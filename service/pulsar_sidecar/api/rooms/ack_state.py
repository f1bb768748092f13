"""Acknowledgement states (PIP-299), and the policy that pauses dispatch, on Pulsar's own paths and in its words."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import AliasPath, BeforeValidator, Field
from starlette.responses import Response

from pulsar_sidecar.ack_state.limits import PauseState, TopicPolicy
from pulsar_sidecar.ack_state.states import DetailOptions
from pulsar_sidecar.ack_state.stored import StoredPlace
from pulsar_sidecar.ack_state.workflow import AckStateService
from pulsar_sidecar.api.guard import guarded_router
from pulsar_sidecar.api.paths import NAMESPACE_PATH, TOPIC_PATHS, V2_PATH, SubscriptionName, V2Namespace, V2Topic
from pulsar_sidecar.api.rights import Right, takes
from pulsar_sidecar.api.schemas import Answer, Parameters, Text
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import SubscriptionType

_POLICY = "dispatcherPauseOnAckStatePersistent"
_Type = Annotated[str | None, BeforeValidator(lambda kind: None if kind is SubscriptionType.NONE else kind.value)]


class AckStateParameters(Parameters):
    """Parameters of ``ackState``."""

    ranges: int = Field(default=20, ge=0, le=100_000)
    """Maximum number of lost ranges to list."""
    stretches: int = Field(default=60, ge=0, le=10_000)
    """Number of equal parts into which the entries are divided."""


class PauseParameters(Parameters):
    """Parameters of reading the policy."""

    applied: bool = False
    """What is in effect, of all levels."""


class PauseRemovalParameters(Parameters):
    """Parameters of removing the policy."""

    force: bool = False
    """Remove it even if the broker then stores a false that overrides the namespace's or the broker's true."""


class RedeliveryAnswer(Answer):
    """Acknowledged entries that would be delivered again."""

    entries: int
    """Number of entries; the entry of a batch holds several messages."""
    range_count: int
    """Number of ranges of these entries."""
    ranges: list[Text]
    """The first ranges, as ``ledgerId:entryId`` or ``ledgerId:first-last``."""


class StoredCursorAnswer(Answer):
    """What a broker would recover if it died now."""

    place: StoredPlace
    """Where it is stored."""
    cursor_ledger: int | None = Field(validation_alias="ledger_id")
    """The cursor's ledger, null if its node holds everything."""
    entry: int | None = Field(validation_alias="entry_id")
    """The entry of that ledger."""
    mark_delete_position: Text = Field(validation_alias=AliasPath("acknowledged", "mark_delete"))
    """Everything up to here is acknowledged."""
    ranges: int
    """Ranges that are stored."""
    batch_deleted_indexes: int = Field(validation_alias="batch_indexes")
    """Batches stored as acknowledged in part."""
    size_bytes: int
    """Bytes that the broker wrote."""


class PausePoliciesAnswer(Answer):
    """``dispatcherPauseOnAckStatePersistentEnabled`` on each level."""

    topic: TopicPolicy
    """The topic's own policy; brokers report false if it is unset."""
    namespace: bool | None
    """The namespace's policy, null if it is unset."""
    broker: bool
    """The owning broker's configuration."""
    applied: bool | None = Field(validation_alias="enabled")
    """What is in effect; null if unknown."""


class StretchAnswer(Answer):
    """Consecutive entries."""

    first: str
    """Position of the first entry."""
    entries: int
    """Number of entries."""
    acknowledged: int
    """Number of acknowledged entries."""
    stored: int
    """Number of entries that are stored as acknowledged."""


class AckStateAnswer(Answer):
    """One subscription of one topic, or of one partition (PIP-299)."""

    topic: Text
    """The topic, or the partition."""
    subscription: str = Field(validation_alias=AliasPath("subscription", "name"))
    """The subscription."""
    broker: str | None
    """The owning broker."""
    type: _Type = Field(validation_alias=AliasPath("subscription", "type"))
    """The subscription's type, null if no consumer has set it since the topic was loaded."""
    consumers: Annotated[int, BeforeValidator(len)] = Field(validation_alias=AliasPath("subscription", "consumers"))
    """Consumers connected."""
    mark_delete_position: Text = Field(validation_alias=AliasPath("cursor", "acknowledged", "mark_delete"))
    """Everything up to here is acknowledged."""
    read_position: Text = Field(validation_alias=AliasPath("cursor", "read_position"))
    """Where the broker reads next."""
    non_contiguous_deleted_messages_ranges: int = Field(validation_alias=AliasPath("cursor", "ranges"))
    """Acknowledged ranges beyond the mark-delete position, which the limit counts."""
    max_unacked_ranges_to_persist: int = Field(validation_alias=AliasPath("limits", "max_unacked_ranges"))
    """The limit (``managedLedgerMaxUnackedRangesToPersist``)."""
    ranges_left: int
    """Number of ranges that can be added within the limit."""
    individually_acknowledged_entries: int = Field(validation_alias=AliasPath("cursor", "acknowledged", "entries"))
    """Entries in these ranges."""
    serialized_size_bytes: int = Field(validation_alias=AliasPath("sizes", "ranges"))
    """Bytes of the ranges when the broker writes them next."""
    entry_bytes: int = Field(validation_alias=AliasPath("sizes", "entry"))
    """Bytes of the next entry of the cursor's ledger: the ranges, properties, and batches acknowledged in part as
    they are stored."""
    max_entry_bytes: int = Field(validation_alias=AliasPath("limits", "max_entry_bytes"))
    """Bytes that such an entry may have (the owner's ``maxMessageSize``)."""
    entry_bytes_left: int
    """Their difference; negative if the entry is too large."""
    node_bytes: int = Field(validation_alias=AliasPath("sizes", "node"))
    """Bytes of the cursor's node, if the broker wrote everything there."""
    max_node_bytes: int = Field(validation_alias=AliasPath("limits", "max_node_bytes"))
    """Bytes that the node may have (``juteMaxBufferBytes``)."""
    node_bytes_left: int
    """Their difference; negative if the node is too large."""
    next_write: StoredPlace | None
    """Where the broker's next write ends; null: neither takes it, so the broker hangs."""
    unload_write: StoredPlace | None
    """Where an orderly unload writes everything; null likewise."""
    loadable: bool
    """False if the stored entry is larger than brokers read: no broker can load the topic until ``maxMessageSize`` is
    raised."""
    max_batch_deleted_index_to_persist: int = Field(validation_alias=AliasPath("limits", "max_batch_deleted_indexes"))
    """``managedLedgerMaxBatchDeletedIndexToPersist``; brokers do not report how many they hold in memory."""
    unacked_messages: int = Field(validation_alias=AliasPath("subscription", "unacked_messages"))
    """Messages delivered and not acknowledged, which brokers deliver again in any case."""
    msg_backlog: int = Field(validation_alias=AliasPath("subscription", "backlog"))
    """Estimated number of messages in the backlog."""
    msg_delayed: int = Field(validation_alias=AliasPath("subscription", "delayed_messages"))
    """Delayed messages that are not due yet."""
    blocked_on_ack_state_persistent: bool | None = Field(validation_alias="blocked")
    """PIP-299 ``isBlockedOnAckStatePersistent``: no new messages are dispatched; null if unknown."""
    pause: PauseState
    """State of the pause, with its cause."""
    policies: PausePoliciesAnswer
    """The policies behind it."""
    stored: StoredCursorAnswer | None
    """The stored state, null if nothing is stored."""
    after_crash: RedeliveryAnswer
    """Acknowledged entries that brokers would deliver again if the owning broker died now."""
    after_unload: RedeliveryAnswer
    """Acknowledged entries that brokers would deliver again if the topic were unloaded now."""
    stretches: list[StretchAnswer] = Field(validation_alias="histogram")
    """The entries beyond the mark-delete position, in parts of the same length."""


class PauseRemovalAnswer(Answer):
    """Result of removing the policy."""

    removed: bool
    """Whether the policy is unset on this level now."""
    in_effect: bool | None
    """Whether dispatch pauses, where this level decides, when state no longer fits; null if unknown."""
    remark: str | None
    """What the broker did instead, if it did not remove the policy."""


_Options = Annotated[AckStateParameters, Query()]


def router(service: AckStateService) -> APIRouter:
    routes = guarded_router("acknowledgement states")
    _add_states(routes, service)
    _add_topic_policy(routes, service)
    _add_namespace_policy(routes, service)
    return routes


def _add_states(routes: APIRouter, service: AckStateService) -> None:
    def states(topic: TopicName, subscription: str | None, parameters: AckStateParameters) -> list[AckStateAnswer]:
        options = DetailOptions(ranges=parameters.ranges, histogram_bins=parameters.stretches)
        return [AckStateAnswer.model_validate(state) for state in service.ack_states(topic, subscription, options)]

    for path, topic_of, version in TOPIC_PATHS:

        @routes.get(f"{path}/subscription/{{subscription}}/ackState", name=f"{version}ack_state")
        @takes(Right.STATE)
        def ack_state(
            topic: Annotated[TopicName, Depends(topic_of)], subscription: SubscriptionName, parameters: _Options
        ) -> list[AckStateAnswer]:
            """How full a subscription's acknowledgement state is, what is stored, and what would be delivered again.

            One answer for each partition. 404: no such topic, or no such subscription.
            """
            return states(topic, subscription, parameters)

    @routes.get(f"{V2_PATH}/ackState")
    @takes(Right.STATE)
    def ack_states(topic: V2Topic, parameters: _Options) -> list[AckStateAnswer]:
        """The same for all durable subscriptions of a topic."""
        return states(topic, None, parameters)


def _add_topic_policy(routes: APIRouter, service: AckStateService) -> None:
    @routes.get(f"{V2_PATH}/{_POLICY}")
    @takes(Right.POLICY)
    def topic_pause(topic: V2Topic, parameters: Annotated[PauseParameters, Query()]) -> bool | None:
        """Whether dispatch pauses when acknowledgements no longer fit; null if unknown."""
        policies = service.topic_pause(topic)
        return policies.enabled if parameters.applied else policies.topic is TopicPolicy.TRUE

    @routes.post(f"{V2_PATH}/{_POLICY}", status_code=204, response_description="Set to true.")
    @takes(Right.CHANGE)
    def enable_topic_pause(topic: V2Topic) -> Response:
        """Pause dispatch of the topic's subscriptions when their acknowledgements no longer fit."""
        service.enable_topic_pause(topic)
        return Response(status_code=204)

    @routes.delete(f"{V2_PATH}/{_POLICY}")
    @takes(Right.CHANGE)
    def remove_topic_pause(
        topic: V2Topic, parameters: Annotated[PauseRemovalParameters, Query()]
    ) -> PauseRemovalAnswer:
        """Remove the topic's own policy. Brokers cannot always remove it; the answer reports the result.

        409: the broker would store a false that overrides the namespace's or the broker's true, and ``force`` is not
        given.
        """
        return PauseRemovalAnswer.model_validate(service.remove_topic_pause(topic, force=parameters.force))


def _add_namespace_policy(routes: APIRouter, service: AckStateService) -> None:
    @routes.get(f"{NAMESPACE_PATH}/{_POLICY}")
    @takes(Right.POLICY)
    def namespace_pause(namespace: V2Namespace) -> bool | None:
        """The namespace's policy; null if it is unset."""
        return service.namespace_pause(namespace)

    @routes.post(f"{NAMESPACE_PATH}/{_POLICY}", status_code=204, response_description="Set to true.")
    @takes(Right.CHANGE)
    def enable_namespace_pause(namespace: V2Namespace) -> Response:
        """Pause dispatch in the namespace when acknowledgements no longer fit, unless a topic's policy overrides it."""
        service.enable_namespace_pause(namespace)
        return Response(status_code=204)

    @routes.delete(f"{NAMESPACE_PATH}/{_POLICY}")
    @takes(Right.CHANGE)
    def remove_namespace_pause(namespace: V2Namespace) -> PauseRemovalAnswer:
        """Remove the namespace's policy, so that its brokers' configuration counts again.

        Brokers up to 4.0.8 store false instead; the sidecar then removes that from the namespace's policies.
        """
        return PauseRemovalAnswer.model_validate(service.remove_namespace_pause(namespace))
