"""Results about delayed indexes: contents, due times, overdue messages, topic-load costs, and simulated settings."""

from enum import StrEnum

from pulsar_sidecar.model.results import result

# --- contents ------------------------------------------------------------------------------------------------------


class Tracker(StrEnum):
    """Tracker that holds a subscription's delayed messages back."""

    BUCKETS = "buckets"
    IN_MEMORY = "in-memory"
    NONE = "none"
    """The topic is not loaded, or no delayed message has arrived since."""
    BROKEN = "broken"
    """A 4.0.8 broker can recover these buckets only in part or not at all, and stops delivering."""
    UNKNOWN = "unknown"


@result
class TrackerState:
    """Tracker of a subscription."""

    tracker: Tracker
    """Tracker that holds delayed messages back."""
    reason: str
    """Reason why it is known or unknown."""


@result
class SegmentView:
    """Segment of a bucket, by the bucket's metadata; times in milliseconds since the epoch."""

    entry: int
    """Number of its entry in the bucket's ledger, from 1."""
    first_due_ms: int
    last_due_ms: int
    indexes: int
    """Number of messages."""
    left: int | None
    """Number of unacknowledged messages; null if the acknowledgements are unknown."""


@result
class BucketView:
    """Bucket of a delayed index."""

    name: str
    """Cursor property that points to the bucket."""
    start_ledger_id: int | None
    """First ledger that it covers; null if the name is malformed."""
    end_ledger_id: int | None
    """Last ledger that it covers; null if the name is malformed."""
    ledger_id: int
    """Ledger that stores the bucket."""
    state: str | None
    """State of that ledger; null if it is gone or unreadable."""
    size_bytes: int | None
    """Bytes of that ledger; null while unknown."""
    indexes: int | None
    """Number of messages in all segments; null if unknown."""
    left: int | None
    """Number of unacknowledged messages; null if unknown."""
    done: int | None
    """Number of acknowledged messages; null if unknown."""
    first_due_ms: int | None
    last_due_ms: int | None
    problem: str | None
    """Reason why a part is missing or unknown; null if all is known."""
    segments: tuple[SegmentView, ...] | None
    """Segments in order; null if the bucket's metadata could not be read."""


@result
class IndexView:
    """Delayed index of one subscription of a topic, or of a partition (PIP-195)."""

    topic: str
    """Topic, or partition."""
    subscription: str
    mark_delete_position: str | None
    """Stored mark-delete position; null if unknown."""
    configured: TrackerState
    """Configured tracker of the broker that owns the topic, or of any broker if none does."""
    running: TrackerState
    """Tracker that the subscription runs on now."""
    next_load: TrackerState
    """Tracker that the subscription will run on after the next topic load."""
    unreadable: int | None
    """Number of buckets missing from the following counts, because their metadata could not be read."""
    indexes: int | None
    """Number of messages in all other buckets; those in several buckets count in each."""
    left: int | None
    """Number of unacknowledged ones; null if the acknowledgements are unknown."""
    done: int | None
    """Number of acknowledged ones; null if the acknowledgements are unknown."""
    size_bytes: int | None
    """Bytes of all buckets whose size is known."""
    problem: str | None
    """Reason why the subscription or its acknowledgements could not be read; null if they could."""
    buckets: tuple[BucketView, ...] | None
    """Buckets in order of the ledgers that they cover; null, like all counts, if the cursor could not be read."""


# --- due times -----------------------------------------------------------------------------------------------------


@result
class DueTime:
    """Messages due within one step."""

    from_ms: int
    """Beginning of the step, milliseconds since the epoch."""
    messages: int
    """Number of messages."""


@result
class DueCounts:
    """Unacknowledged messages of one subscription of a topic, or of a partition."""

    topic: str
    """Topic, or partition."""
    subscription: str
    """Subscription; empty if the topic could not be read."""
    problem: str | None
    """Reason why the subscription is not counted; null if it is."""
    delayed: int
    """Number of messages that are not due yet."""
    due: int
    """Number of messages whose due time has come."""
    undelayed: int
    """Number of messages without a due time."""
    unreadable: int
    """Number of entries that could not be read."""
    unread: int
    """Number of entries beyond ``limit``."""
    first_due_ms: int | None
    """Second in which the first delayed message is due."""
    last_due_ms: int | None
    """Second in which the last delayed message is due."""
    from_buckets: int
    """Number of ``delayed`` and ``due`` messages counted from buckets."""


@result
class Calendar:
    """Due times of delayed messages; a message counts once for each subscription that waits for it."""

    delayed: int
    """Number of messages that are not due yet."""
    due: int
    """Number of messages whose due time has come."""
    undelayed: int
    """Number of messages without a due time."""
    unreadable: int
    """Number of entries that could not be read."""
    unread: int
    """Number of entries beyond ``limit``."""
    from_buckets: int
    """Number of ``delayed`` and ``due`` messages counted from buckets."""
    now_ms: int
    """Time of counting."""
    exact: bool
    """True if buckets' segments were read, and not only their metadata."""
    step_seconds: int
    """Length of each of ``times``."""
    resolution_ms: int
    """Longest time by which messages may be due later than in ``times``."""
    times: tuple[DueTime, ...]
    """Steps with delayed messages, ascending."""
    subscriptions: tuple[DueCounts, ...]


# --- overdue messages ----------------------------------------------------------------------------------------------


@result
class OverdueMessage:
    """Message that is due and not acknowledged."""

    message_id: str
    """``ledgerId:entryId``."""
    due_ms: int


@result
class OverdueReason:
    """Reason why due messages are unacknowledged."""

    reason: str
    remedy: str


@result
class OverdueMessages:
    """Overdue messages of one subscription of a topic, or of a partition."""

    topic: str
    """Topic, or partition."""
    subscription: str
    messages: int
    first_due_ms: int | None
    last_due_ms: int | None
    unreadable: int
    """Number of unacknowledged entries that could not be read."""
    reasons: tuple[OverdueReason, ...]
    """Known reasons, possibly none."""
    sample: tuple[OverdueMessage, ...]
    """First overdue messages."""


@result
class OverdueReport:
    """Overdue messages of a topic."""

    now_ms: int
    due_by_ms: int
    """Latest due time of an overdue message."""
    entries_read: int
    complete: bool
    """False if the limit was reached before the end of the backlog."""
    subscriptions: tuple[OverdueMessages, ...]


# --- costs of topic loads ------------------------------------------------------------------------------------------


@result
class LoadCost:
    """Work and memory that a topic load costs its broker."""

    entries: int
    """Number of entries that the broker reads."""
    seconds: float
    memory_bytes: int


@result
class SubscriptionForecast:
    """Cost of one subscription of a topic, or of a partition."""

    subscription: str
    waiting: int
    """Number of unacknowledged entries."""
    indexed: int
    """Number of these that a broker with the bucket tracker need not read."""
    buckets: int
    unusable: str | None
    """Reason why a broker does not use the buckets; null if it does."""
    as_configured: LoadCost
    """Cost with the brokers' tracker."""
    with_buckets: LoadCost
    """Cost with the bucket tracker."""
    without_buckets: LoadCost
    """Cost with the in-memory tracker."""


@result
class TopicForecast:
    """Cost of a topic without partitions, or of one partition: its subscriptions together."""

    topic: str
    as_configured: LoadCost
    """Cost with the brokers' tracker."""
    with_buckets: LoadCost
    """Cost with the bucket tracker."""
    without_buckets: LoadCost
    """Cost with the in-memory tracker."""
    subscriptions: tuple[SubscriptionForecast, ...]
    unreadable: tuple[str, ...]
    """Parts that could not be read, and so are in no figure."""


@result
class Forecast:
    """Cost of loading topics now, the most expensive first."""

    buckets_configured: bool
    """True if the brokers run the bucket tracker."""
    topics: int
    """Number of partitions, and of topics without partitions."""
    total: LoadCost
    """Cost of loading all topics with the brokers' tracker."""
    worst: tuple[TopicForecast, ...]
    """Most expensive topics that have a subscription."""
    unreadable: tuple[str, ...]
    """Parts that could not be read, and so are in no figure."""
    assumptions: tuple[str, ...]


# --- simulated settings --------------------------------------------------------------------------------------------


@result
class SimulatedSettings:
    """Settings of a bucket tracker."""

    min_index_count: int
    time_step_seconds: int
    max_indexes_per_segment: int
    max_num_buckets: int
    shared_index: bool
    breaks_dispatch: bool
    """True if a broker of 4.0.8 stops dispatching with it: a ``maxNumBuckets`` of 1, 2 or 3."""


@result
class SimulatedTracker:
    """State of a tracker after all messages were added."""

    settings: SimulatedSettings | None
    """Settings of the bucket tracker; null for the in-memory tracker."""
    buckets: int
    """Number of buckets at the end."""
    sealed: int
    """Number of buckets written, including merged ones."""
    merges: int
    segments: int
    """Number of segments of the buckets at the end."""
    indexes_in_memory: int
    """Number of indexes in the mutable bucket and the shared queue."""
    memory_bytes: int
    """Bytes of a broker's memory for these and for the buckets' bitmaps."""
    snapshot_bytes: int
    largest_snapshot_bytes: int
    load: LoadCost
    """Cost of the next topic load."""
    failure: str | None
    """Error that a broker would have thrown, and the message reached; later messages are in no tracker."""


@result
class SimulatedCancellations:
    """Cancellations in PIP-423's tracker, each immediately after its message, after a restart."""

    outlived: tuple[str, ...]
    """Messages whose cancellation a bucket holds; a broker does not deliver them after the restart either."""
    forgotten: tuple[str, ...]
    """Messages that a broker delivers after the restart."""
    unknown: tuple[str, ...]
    """Positions of no waiting delayed message."""


@result
class Simulation:
    """Simulation of one subscription of a topic, or of a partition; with a shared index, of all together."""

    topic: str
    subscription: str
    """Subscription; ``pulsar.delayed.index`` with a shared index."""
    delayed: int
    """Number of messages that are not due."""
    others: int
    """Number of unacknowledged entries that are not delayed or already due; a topic load reads them as well."""
    unreadable: int
    """Number of ``others`` that could not be read."""
    complete: bool
    """False if the limit was reached before the end of the backlog."""
    today: SimulatedTracker
    """Tracker as the brokers are configured; beside a shared index, the trackers of all subscriptions together."""
    simulated: SimulatedTracker
    """Tracker with the requested settings."""
    cancellations: SimulatedCancellations | None
    """Outcome of the given cancellations; null if none are given."""
    given_although_acknowledged: int | None
    """Number of positions that a shared index gives to subscriptions that have acknowledged them; null without one."""
    assumptions: tuple[str, ...]
