"""Results of building, checking and repairing delayed indexes."""

from enum import Enum, StrEnum
from typing import Final, Self

from pulsar_sidecar.model.results import result


class PointerOutcome(StrEnum):
    """Outcome of a change that the metadata store accepted."""

    DONE = "done"
    """The cursor names the intended buckets, and no broker has loaded the topic."""
    LOADED_MEANWHILE = "loaded-meanwhile"
    """The cursor names the intended buckets, but a broker has loaded the topic, perhaps before the change: unload it
    again."""
    OVERWRITTEN = "overwritten"
    """A broker that loaded the topic earlier has written its own copy of the cursor: the change is undone."""


# --- building ------------------------------------------------------------------------------------------------------


@result
class BuiltBucket:
    """New bucket; times in milliseconds since the epoch."""

    start_ledger_id: int
    """First ledger that it covers."""
    end_ledger_id: int
    """Last ledger that it covers."""
    segments: int
    indexes: int
    """Number of messages."""
    first_due_ms: int
    last_due_ms: int
    ledger_id: int | None
    """Ledger to which it was written; null if it is only planned."""


@result
class LeftOutLedger:
    """Ledger whose messages get no index; brokers read them as before."""

    ledger_id: int
    reason: str


@result
class BuiltSubscription:
    """New buckets of one subscription of a topic, or of a partition."""

    topic: str
    """Topic, or partition."""
    subscription: str
    outcome: PointerOutcome | None
    """Outcome of the change of the cursor; null if nothing was changed."""
    buckets: tuple[BuiltBucket, ...]
    """Buckets in order of the ledgers that they cover."""
    covered_ledger_ids: tuple[int, ...]
    """Ledgers with unacknowledged messages that existing buckets cover."""
    left_out: tuple[LeftOutLedger, ...]
    """Ledgers that are not in BookKeeper."""


@result
class BuildReport:
    """Plan of buckets, or its result."""

    plan: str
    """Hash to approve."""
    executed: bool
    """True if the buckets were written."""
    subscriptions: tuple[BuiltSubscription, ...]
    """Subscriptions of the topic, or of each partition; after execution, only those that got a bucket."""


# --- checks --------------------------------------------------------------------------------------------------------


class RepairStep(StrEnum):
    """Repair of one bucket."""

    DROP_POINTER = "drop-pointer"
    """Remove the property from the cursor; its ledger does not exist or is not the subscription's."""
    RETIRE = "retire"
    """Enqueue the bucket's ledger for deletion, and remove the property from the cursor."""
    HAND_OVER = "hand-over"
    """Enqueue for deletion a ledger that no cursor points to."""
    ATTACH = "attach"
    """Add the property to the cursor again: the whole bucket is correct."""

    @property
    def changes_cursor(self) -> bool:
        """True if no broker may have the topic loaded meanwhile."""
        return self is not RepairStep.HAND_OVER


_FALLS_BACK: Final = (
    "the next broker that loads the topic falls back to the in-memory tracker for this subscription: it reads the "
    "backlog again, and the subscription's other buckets stay, unused, until the subscription is deleted"
)
_REPAIR: Final = "stop the topic's clients, unload it and run: pulsar-sidecar delayed-index repair"


class FindingKind(Enum):
    """Kind of finding, with its consequence, remedy and repair, if there is one; docs/delayed-index.md has each."""

    DANGLING_POINTER = "dangling-pointer", _FALLS_BACK, _REPAIR, RepairStep.DROP_POINTER
    """A cursor points to a ledger that does not exist."""
    FOREIGN_LEDGER = "foreign-ledger", _FALLS_BACK, _REPAIR, RepairStep.DROP_POINTER
    """A cursor points to a ledger that is not a bucket of its subscription."""
    BAD_KEY = (
        "bad-key",
        "no broker of 4.0.8 can create the subscription's tracker: from its first delayed message on the subscription "
        "delivers nothing, messages without a delay included",
        _REPAIR,
        RepairStep.RETIRE,
    )
    """A cursor property has a bucket's prefix and names no range of ledgers."""
    UNREADABLE_SNAPSHOT = "unreadable-snapshot", _FALLS_BACK, _REPAIR, RepairStep.RETIRE
    """A bucket's entries are not a snapshot, or no bookie still has them."""
    UNREAD_SNAPSHOT = (
        "unread-snapshot",
        f"if brokers cannot read it either, {_FALLS_BACK}",
        "bring back the bookies that hold it, or upgrade the sidecar if a newer broker wrote it; then check again",
    )
    """The state of a bucket is unknown: bookies did not respond, or the bucket has fields unknown to this version."""
    UNREADABLE_NODE = (
        "unreadable-node",
        "the buckets that it names cannot be checked, or only in part; if the value of a bucket's property is not a "
        "ledger id, no broker of 4.0.8 can create the subscription's tracker: it delivers nothing",
        "check again; if the finding persists, inspect the node with bin/pulsar zookeeper-shell",
    )
    """The node of a cursor, topic or ledger, or a cursor's acknowledgements, cannot be read or decoded."""
    WRONG_BITMAP = (
        "wrong-bitmap",
        "a broker does not dispatch an entry whose bit is set and whose index is missing before the bucket is gone, "
        "may dispatch one without a bit twice, and dispatches late what is in a segment out of order",
        _REPAIR,
        RepairStep.RETIRE,
    )
    """Entry 0 of a bucket and its segments contradict each other."""
    WRONG_DELIVER_AT = (
        "wrong-deliver-at",
        "a broker delivers these messages too early or too late",
        _REPAIR,
        RepairStep.RETIRE,
    )
    """A segment has another due time than the message, or names a message that is not delayed."""
    OUTSIDE_TOPIC = (
        "outside-topic",
        "a broker reads entries that do not exist, and counts them as delayed",
        _REPAIR,
        RepairStep.RETIRE,
    )
    """A bucket has unacknowledged indexes of entries that the topic does not have."""
    OVERLAP = (
        "overlap",
        "the next broker that loads the topic deletes one of the buckets, whichever it meets first, and may continue "
        "to use it: the subscription then delivers nothing after its first segment, until the topic is loaded again",
        _REPAIR,
        RepairStep.RETIRE,
    )
    """Buckets of one subscription cover the same ledgers."""
    DEAD_BUCKET = (
        "dead-bucket",
        "it takes storage; the bucket tracker deletes it when the topic is loaded next, the in-memory tracker never "
        "does, and an audit counts it as in use",
        f"load the topic on the bucket tracker, or, where it stays: {_REPAIR}",
        RepairStep.RETIRE,
    )
    """Bucket whose messages are all due and acknowledged."""
    ORPHANED_BUCKET = (
        "orphaned-bucket",
        "it takes storage forever, and no broker reads it",
        "run: pulsar-sidecar delayed-index repair --orphans; it attaches the bucket, enqueues its ledger for deletion, "
        "or leaves it while something cannot be read",
        RepairStep.HAND_OVER,
    )
    """Ledger of a bucket that no cursor points to."""
    TRACKER_DOWNGRADE = (
        "tracker-downgrade",
        "the buckets are not read, and not deleted with their subscription or topic: they become orphans then",
        "set delayedDeliveryTrackerFactoryClassName back to the bucket tracker, or delete the buckets: "
        "pulsar-sidecar delayed-index repair --kind tracker-downgrade",
        RepairStep.RETIRE,
    )
    """Buckets exist, but a broker does not run the tracker that maintains and deletes them."""
    UNUSABLE_SETTING = (
        "unusable-setting",
        "with the fourth bucket of a subscription the broker fails to merge: it tracks no more messages and dispatches "
        "none",
        "set delayedDeliveryMaxNumBuckets to -1 and restart the broker",
    )
    """A broker's setting stops dispatch."""

    consequence: str
    remedy: str
    step: RepairStep | None

    def __new__(cls, value: str, consequence: str, remedy: str, step: RepairStep | None = None) -> Self:
        kind = object.__new__(cls)
        kind._value_ = value
        kind.consequence, kind.remedy, kind.step = consequence, remedy, step
        return kind


@result
class Finding:
    """Problem of one bucket, subscription or broker."""

    kind: FindingKind
    topic: str | None
    """Topic, or partition; null for a broker's setting."""
    subscription: str | None
    bucket: str | None
    """Cursor property of the bucket, or the one that the ledger's metadata name."""
    ledger_id: int | None
    """Ledger of the bucket."""
    cause: str
    """Data read."""
    consequence: str
    """Effect on the topic."""
    remedy: str


@result
class CheckScope:
    """Numbers of checked objects, and the certainty of the result."""

    topics: int
    subscriptions: int
    buckets: int
    indexes: int
    """Number of indexes in buckets' segments."""
    entries: int
    """Number of messages compared with their index."""
    entries_left: int
    """Number of unacknowledged messages with an index; ``entries`` is a sample of these, or all."""
    unread: int
    """Number of messages in the sample that bookies do not have, or could not deliver."""
    ledgers: int | None
    """Number of ledgers searched for orphans; null without a search."""
    wrong_share_bound: float
    """Upper bound, with 95 % confidence, of the share of wrong messages if every compared one was right; 1 if some
    could not be read."""


@result
class CheckReport:
    """Result of a check; clean without findings."""

    findings: tuple[Finding, ...]
    checked: CheckScope
    seconds: float


# --- repairs -------------------------------------------------------------------------------------------------------


@result
class RepairAction:
    """Repair of one bucket."""

    step: RepairStep
    topic: str
    subscription: str
    bucket: str
    """Cursor property of the bucket."""
    ledger_id: int
    reason: str
    """Findings on the bucket."""


@result
class LoadedTopic:
    """Topic whose clients must stop, and that must be unloaded, before the plan can be executed."""

    topic: str
    broker: str
    """Broker that has the topic loaded."""
    clients: tuple[str, ...] | None
    """Producers and consumers, which would make a broker reload the topic at once; null if the broker did not report
    them."""


@result
class RepairReport:
    """Repairs to approve; nothing was changed."""

    plan: str
    """Hash to approve."""
    actions: tuple[RepairAction, ...]
    left: tuple[Finding, ...]
    """Findings without an action."""
    loaded: tuple[LoadedTopic, ...]
    """Topics to unload first."""
    checked: CheckScope


@result
class RepairResult:
    """Executed action, and its effects."""

    action: RepairAction
    done: bool
    """True if nothing remains to be done."""
    outcome: PointerOutcome | None
    """Outcome of the change of the cursor; null if it was not changed, or if that is unknown: see ``problem``."""
    handed_over: bool
    """True if the deletion service has a record of the ledger."""
    problem: str | None
    """Reason why the action is incomplete, or the remaining task; null if it is done."""
