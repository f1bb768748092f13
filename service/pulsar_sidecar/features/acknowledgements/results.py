"""Results about acknowledgement states, and about the policy that pauses dispatch (PIP-299)."""

from enum import StrEnum

from pulsar_sidecar.model.results import result


class StoredPlace(StrEnum):
    """Storage from which a broker would recover a cursor."""

    CURSOR_LEDGER = "cursor ledger"
    METADATA_STORE = "metadata store"


class TopicPolicy(StrEnum):
    """A topic's own policy, as far as brokers report it: up to 4.0.8 they report an unset policy as false."""

    TRUE = "true"
    FALSE_OR_UNSET = "false or unset"


class PauseState(StrEnum):
    """Pause of a subscription's dispatch, and the reason for it."""

    OFF = "off"
    """No policy enables the pause: acknowledgements that do not fit are lost when the broker stops."""
    NOT_APPLICABLE = "not applicable"
    """Enabled, but the subscription is not Shared or Key_Shared, and only these pause."""
    ARMED = "armed"
    """Enabled, and everything fits."""
    IN_FORCE = "in force"
    """Enabled, with too many ranges: the broker reads no new messages, only due delayed ones and redeliveries."""
    UNKNOWN = "unknown"
    """There are too many ranges, and brokers do not report whether the topic's policy overrides the others."""

    @property
    def blocked(self) -> bool | None:
        """PIP-299's ``isBlockedOnAckStatePersistent``; None if unknown."""
        return None if self is PauseState.UNKNOWN else self is PauseState.IN_FORCE


class Fullness(StrEnum):
    """Comparison of a subscription's stored ranges with the limit."""

    FULL = "full"
    """More ranges than fit: the broker loses them when it stops, or pauses dispatch."""
    NEARLY_FULL = "nearly full"
    """At least four fifths of the ranges that fit."""
    FITS = "fits"


@result
class Redelivery:
    """Acknowledged entries that would be delivered again."""

    entries: int
    """Number of entries; the entry of a batch holds several messages."""
    range_count: int
    """Number of ranges of these entries."""
    ranges: tuple[str, ...]
    """The first ranges, as ``ledgerId:entryId`` or ``ledgerId:first-last``."""


@result
class StoredAcknowledgements:
    """State that a broker would recover if it died now."""

    place: StoredPlace
    cursor_ledger: int | None
    """The cursor's ledger, null if its node holds everything."""
    entry: int | None
    """The entry of that ledger."""
    mark_delete_position: str
    """Everything up to here is acknowledged."""
    ranges: int
    batch_deleted_indexes: int
    """Batches stored as acknowledged in part."""
    size_bytes: int
    """Bytes that the broker wrote."""


@result
class PausePoliciesByLevel:
    """``dispatcherPauseOnAckStatePersistentEnabled`` on each level."""

    topic: TopicPolicy
    """The topic's own policy; brokers report false if it is unset."""
    namespace: bool | None
    """The namespace's policy, null if it is unset."""
    broker: bool
    """The owning broker's configuration."""
    applied: bool | None
    """The policy in effect; null if unknown."""


@result
class Stretch:
    """Consecutive entries."""

    first: str
    """Position of the first entry."""
    entries: int
    acknowledged: int
    stored: int
    """Number of entries that are stored as acknowledged."""


@result
class AckState:
    """Acknowledgement state of one subscription of one topic, or of one partition (PIP-299)."""

    topic: str
    """The topic, or the partition."""
    subscription: str
    broker: str | None
    """The owning broker."""
    type: str | None
    """The subscription's type, null if no consumer has set it since the topic was loaded."""
    consumers: int
    mark_delete_position: str
    """Everything up to here is acknowledged."""
    read_position: str
    """Position that the broker reads next."""
    non_contiguous_deleted_messages_ranges: int
    """Acknowledged ranges beyond the mark-delete position, which the limit counts."""
    max_unacked_ranges_to_persist: int
    """The limit (``managedLedgerMaxUnackedRangesToPersist``)."""
    ranges_left: int
    """Number of ranges that can be added within the limit."""
    individually_acknowledged_entries: int
    """Number of entries in the acknowledged ranges beyond the mark-delete position."""
    serialized_size_bytes: int
    """Bytes of the ranges when the broker writes them next."""
    entry_bytes: int
    """Bytes of the next entry of the cursor's ledger: the ranges, properties, and batches acknowledged in part as
    they are stored."""
    max_entry_bytes: int
    """Maximum size of a cursor-ledger entry in bytes (the owner's ``maxMessageSize``)."""
    entry_bytes_left: int
    """``maxEntryBytes`` minus ``entryBytes``; negative if the entry is too large."""
    node_bytes: int
    """Bytes of the cursor's node, if the broker wrote everything there."""
    max_node_bytes: int
    """Maximum size of the node in bytes (``juteMaxBufferBytes``)."""
    node_bytes_left: int
    """``maxNodeBytes`` minus ``nodeBytes``; negative if the node is too large."""
    next_write: StoredPlace | None
    """Destination of the broker's next write; null: neither takes it, so the broker hangs."""
    unload_write: StoredPlace | None
    """Destination of everything in an orderly unload; null likewise."""
    loadable: bool
    """False if the stored entry is larger than brokers read: no broker can load the topic until ``maxMessageSize`` is
    raised."""
    max_batch_deleted_index_to_persist: int
    """``managedLedgerMaxBatchDeletedIndexToPersist``; brokers do not report how many they hold in memory."""
    unacked_messages: int
    """Messages delivered and not acknowledged, which brokers deliver again in any case; 0 for Exclusive and Failover,
    of which brokers count none."""
    read_unacknowledged_entries: int
    """Unacknowledged entries before the read position: delivered, or held back because they are delayed."""
    msg_backlog: int
    """Estimated number of messages in the backlog."""
    msg_delayed: int
    """Delayed messages that are not due yet."""
    blocked_on_ack_state_persistent: bool | None
    """PIP-299 ``isBlockedOnAckStatePersistent``: no new messages are dispatched; null if unknown."""
    pause: PauseState
    """State of the pause, with its cause."""
    policies: PausePoliciesByLevel
    """Policies that decide on the pause."""
    stored: StoredAcknowledgements | None
    """The stored state, null if nothing is stored."""
    after_crash: Redelivery
    """Acknowledged entries that brokers would deliver again if the owning broker died now."""
    after_unload: Redelivery
    """Acknowledged entries that brokers would deliver again if the topic were unloaded now."""
    stretches: tuple[Stretch, ...]
    """The entries from the mark-delete position to the last one, in parts of the same length."""
    replicated: bool
    """True for a replicated subscription: other clusters get its mark-delete position, at the next snapshot, and no
    acknowledgement beyond it."""


@result
class PauseRemoval:
    """Result of removing the policy."""

    removed: bool
    """True if the policy is unset on this level now."""
    in_effect: bool | None
    """True if dispatch pauses, where this level decides, when state no longer fits; null if unknown."""
    remark: str | None = None
    """Action of the broker instead, if it did not remove the policy."""


@result
class StoredAckState:
    """Stored state of one subscription of one topic, or of one partition."""

    topic: str
    """The topic, or the partition."""
    subscription: str
    fullness: Fullness
    """Comparison of the ranges with the limit."""
    pause_enabled: bool
    """True if dispatch pauses when the ranges do not fit, by namespace or broker; a topic policy may override it."""
    mark_delete_position: str
    """Everything up to here is acknowledged."""
    ranges: int
    """Acknowledged ranges beyond the mark-delete position; brokers store at most one more than fits."""
    entries: int
    """Number of entries beyond the mark-delete position."""
    acknowledged: int
    """Number of these entries that are acknowledged."""
    stretches: tuple[int, ...]
    """Percentages of acknowledged entries in equal parts; 0 and 100 only for parts of which none or all are
    acknowledged."""


@result
class StoredAckStates:
    """Stored states, those with the most ranges first. Counts include subscriptions that the filters exclude."""

    as_of_ms: int
    """Time of reading; at most some seconds ago."""
    topics: int
    """Number of topics without partitions, and of partitions."""
    subscriptions: int
    """Number of their durable subscriptions."""
    full: int
    """Number of subscriptions whose ranges do not fit."""
    nearly_full: int
    """Number of subscriptions with at least four fifths of the ranges that fit."""
    max_unacked_ranges_to_persist: int
    """Number of ranges that fit (``managedLedgerMaxUnackedRangesToPersist`` of a broker)."""
    found: int
    """Number of subscriptions that pass the filters."""
    states: tuple[StoredAckState, ...]
    """Subscriptions that pass the filters, from ``offset`` on."""
    unreadable: int
    """Number of topics and subscriptions that could not be read, and may be full."""
    reasons: tuple[str, ...]
    """The first hundred unreadable topics and subscriptions, each with the reason."""
