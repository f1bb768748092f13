"""The JSON of acknowledgement states; names are Pulsar's where Pulsar has one."""

from pydantic import Field

from pulsar_sidecar.ack_state.judging import AckState, Redelivery
from pulsar_sidecar.ack_state.pausing import PauseState, TopicPolicy
from pulsar_sidecar.ack_state.stored import StoredPlace
from pulsar_sidecar.api.schemas import Answer, Query
from pulsar_sidecar.model.topic_stats import SubscriptionType


class AckStateParameters(Query):
    """Parameters of ``ackState``."""

    ranges: int = Field(default=20, ge=0, le=100_000)
    """How many of the ranges that would come again are listed."""
    stretches: int = Field(default=60, ge=0, le=10_000)
    """In how many parts the entries are plotted."""


class PauseParameters(Query):
    """Parameters of reading the policy."""

    applied: bool = False
    """What is in effect, of all levels."""


class PauseRemovalParameters(Query):
    """Parameters of removing the policy."""

    force: bool = False
    """Remove it even if the broker then stores a false that overrides the namespace's or the broker's true."""


class RedeliveryAnswer(Answer):
    """Acknowledged entries that would be delivered again."""

    entries: int
    """Entries; an entry of a batch is several messages."""
    range_count: int
    """Ranges that these entries make."""
    ranges: list[str]
    """The first of them, as ``ledgerId:entryId`` or ``ledgerId:first-last``."""


class StoredCursorAnswer(Answer):
    """What a broker would recover if it died now."""

    place: StoredPlace
    """Where it is stored."""
    cursor_ledger: int | None
    """The cursor's ledger, null if its node holds everything."""
    entry: int | None
    """The entry of that ledger."""
    mark_delete_position: str
    """Everything up to here is acknowledged."""
    ranges: int
    """Ranges that are stored."""
    batch_deleted_indexes: int
    """Batches stored as acknowledged in part."""
    size_bytes: int
    """What the broker wrote."""


class PausePoliciesAnswer(Answer):
    """``dispatcherPauseOnAckStatePersistentEnabled`` on each level."""

    topic: TopicPolicy
    """The topic's own policy; brokers answer false if there is none."""
    namespace: bool | None
    """The namespace's, null if there is none."""
    broker: bool
    """The owning broker's configuration."""
    applied: bool | None
    """What is in effect; null if unknown."""


class StretchAnswer(Answer):
    """Some entries in a row."""

    first: str
    """Where it begins."""
    entries: int
    """How many there are."""
    acknowledged: int
    """How many of them are acknowledged."""
    stored: int
    """How many of the acknowledged ones are stored as such."""


class AckStateAnswer(Answer):
    """One subscription of one topic, or of one partition (PIP-299)."""

    topic: str
    """The topic, or the partition."""
    subscription: str
    """The subscription."""
    broker: str | None
    """The owning broker."""
    type: str | None
    """The subscription's type, null if no consumer has set it since the topic was loaded."""
    consumers: int
    """Consumers connected."""
    mark_delete_position: str
    """Everything up to here is acknowledged."""
    read_position: str
    """Where the broker reads next."""
    non_contiguous_deleted_messages_ranges: int
    """Ranges acknowledged beyond it: what counts for the limit."""
    max_unacked_ranges_to_persist: int
    """The limit (``managedLedgerMaxUnackedRangesToPersist``)."""
    ranges_left: int
    """Ranges that can be added before something no longer fits."""
    individually_acknowledged_entries: int
    """Entries in these ranges."""
    serialized_size_bytes: int
    """What the ranges take when they are written next."""
    max_batch_deleted_index_to_persist: int
    """``managedLedgerMaxBatchDeletedIndexToPersist``; brokers do not tell how many they hold in memory."""
    unacked_messages: int
    """Delivered and not acknowledged: they come again in any case."""
    msg_backlog: int
    """Messages that wait, estimated."""
    msg_delayed: int
    """Messages held back until they are due."""
    blocked_on_ack_state_persistent: bool | None
    """PIP-299 ``isBlockedOnAckStatePersistent``: no new messages are dispatched; null if unknown."""
    pause: PauseState
    """Why it is so."""
    policies: PausePoliciesAnswer
    """Who says so."""
    stored: StoredCursorAnswer | None
    """What is stored, null if nothing is."""
    after_crash: RedeliveryAnswer
    """Acknowledged entries that would come again if the broker died now."""
    after_unload: RedeliveryAnswer
    """Acknowledged entries that would come again if the topic were unloaded in order now."""
    stretches: list[StretchAnswer]
    """The entries beyond the mark-delete position, in parts of the same length."""


class PauseRemovalAnswer(Answer):
    """What became of removing the policy."""

    removed: bool
    """Whether nothing is set on this level now."""
    in_effect: bool | None
    """Whether dispatch is paused, where this level decides, when state no longer fits; null if unknown."""
    remark: str | None
    """What the broker really did, if it is not what was asked for."""


def ack_state_answer(state: AckState) -> AckStateAnswer:
    """A state as JSON."""
    cursor, subscription, policies = state.cursor, state.subscription, state.policies
    return AckStateAnswer(
        topic=str(state.topic),
        subscription=subscription.name,
        broker=state.broker,
        type=None if subscription.type is SubscriptionType.NONE else subscription.type.value,
        consumers=len(subscription.consumers),
        mark_delete_position=str(cursor.acknowledged.mark_delete),
        read_position=str(cursor.read_position),
        non_contiguous_deleted_messages_ranges=cursor.ranges,
        max_unacked_ranges_to_persist=state.limits.max_unacked_ranges,
        ranges_left=state.ranges_left,
        individually_acknowledged_entries=cursor.acknowledged.entries,
        serialized_size_bytes=state.written_bytes,
        max_batch_deleted_index_to_persist=state.limits.max_batch_deleted_indexes,
        unacked_messages=subscription.unacked_messages,
        msg_backlog=subscription.backlog,
        msg_delayed=subscription.delayed_messages,
        blocked_on_ack_state_persistent=state.blocked,
        pause=state.pause,
        policies=PausePoliciesAnswer(
            topic=policies.topic, namespace=policies.namespace, broker=policies.broker, applied=policies.enabled
        ),
        stored=_stored(state),
        after_crash=_redelivery(state.after_crash),
        after_unload=_redelivery(state.after_unload),
        stretches=[StretchAnswer.model_validate(stretch) for stretch in state.stretches],
    )


def _stored(state: AckState) -> StoredCursorAnswer | None:
    found = state.stored
    if found is None:
        return None
    return StoredCursorAnswer(
        place=found.place,
        cursor_ledger=found.ledger_id,
        entry=found.entry_id,
        mark_delete_position=str(found.acknowledged.mark_delete),
        ranges=found.ranges,
        batch_deleted_indexes=found.batch_indexes,
        size_bytes=found.size_bytes,
    )


def _redelivery(found: Redelivery) -> RedeliveryAnswer:
    return RedeliveryAnswer(
        entries=found.entries, range_count=found.range_count, ranges=[str(each) for each in found.ranges]
    )
