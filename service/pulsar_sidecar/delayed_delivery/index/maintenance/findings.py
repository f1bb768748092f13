"""What can be wrong with a delayed index: each kind with its consequence and its remedy."""

from dataclasses import dataclass, field
from enum import Enum

from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName


class FindingKind(Enum):
    """What was found; each is in `docs/delayed-index.md`."""

    DANGLING_POINTER = "dangling-pointer"
    """A cursor points to a ledger that does not exist."""
    FOREIGN_LEDGER = "foreign-ledger"
    """A cursor points to a ledger that is not a bucket of its subscription."""
    BAD_KEY = "bad-key"
    """A cursor property begins like a bucket's and names no range of ledgers."""
    UNREADABLE_SNAPSHOT = "unreadable-snapshot"
    """A bucket's entries were read and are no snapshot, or no bookie has them any more."""
    UNREAD_SNAPSHOT = "unread-snapshot"
    """Whether a bucket is sound is not known: bookies did not answer."""
    UNREADABLE_NODE = "unreadable-node"
    """A cursor's or a topic's node, or a ledger's, or what a cursor has acknowledged, cannot be read or understood."""
    WRONG_BITMAP = "wrong-bitmap"
    """Entry 0 of a bucket and its segments contradict each other."""
    WRONG_DELIVER_AT = "wrong-deliver-at"
    """A segment names another due time than the message, or a message that is not delayed."""
    OUTSIDE_TOPIC = "outside-topic"
    """A bucket has indexes of entries that the topic does not have, beyond what is acknowledged."""
    OVERLAP = "overlap"
    """Buckets of one subscription cover the same ledgers."""
    DEAD_BUCKET = "dead-bucket"
    """A bucket of which everything is due and acknowledged."""
    ORPHANED_BUCKET = "orphaned-bucket"
    """A bucket's ledger that no cursor points to."""
    TRACKER_DOWNGRADE = "tracker-downgrade"
    """Buckets where brokers do not run the tracker that keeps and deletes them."""
    UNUSABLE_SETTING = "unusable-setting"
    """A broker's setting stops dispatch."""


_FALLS_BACK = (
    "the next broker that loads the topic falls back to the in-memory tracker for this subscription: it reads the "
    "backlog again, and the subscription's other buckets stay, unused, until the subscription goes"
)
_REPAIR = "stop the topic's clients, unload it and run: pulsar-sidecar delayed-index repair"

_CONSEQUENCES: dict[FindingKind, str] = {
    FindingKind.DANGLING_POINTER: _FALLS_BACK,
    FindingKind.FOREIGN_LEDGER: _FALLS_BACK,
    FindingKind.BAD_KEY: (
        "no broker of 4.0.8 can make the subscription's tracker: from its first delayed message on the subscription "
        "delivers nothing, messages without a delay included"
    ),
    FindingKind.UNREADABLE_SNAPSHOT: _FALLS_BACK,
    FindingKind.UNREAD_SNAPSHOT: f"if the bookies stay away, {_FALLS_BACK}",
    FindingKind.UNREADABLE_NODE: "the buckets that it names cannot be checked, or only in part",
    FindingKind.WRONG_BITMAP: (
        "a broker does not dispatch an entry whose bit is set and whose index is missing before the bucket is gone, "
        "and may dispatch one without a bit twice"
    ),
    FindingKind.WRONG_DELIVER_AT: "a broker delivers these messages too early or too late",
    FindingKind.OUTSIDE_TOPIC: "a broker reads entries that do not exist, and counts them as delayed",
    FindingKind.OVERLAP: (
        "the next broker that loads the topic deletes one of the buckets, whichever it meets first, and may go on to "
        "use it: the subscription then delivers nothing after its first segment, until the topic is loaded once more"
    ),
    FindingKind.DEAD_BUCKET: (
        "it takes storage; the bucket tracker deletes it when the topic is loaded next, the in-memory tracker never "
        "does, and an audit counts it as in use"
    ),
    FindingKind.ORPHANED_BUCKET: "it takes storage for ever, and no broker reads it",
    FindingKind.TRACKER_DOWNGRADE: (
        "the buckets are not read, and not deleted with their subscription or topic: they become orphans then"
    ),
    FindingKind.UNUSABLE_SETTING: (
        "with the fourth bucket of a subscription the broker fails to merge: it tracks no more messages and dispatches "
        "none"
    ),
}

_REMEDIES: dict[FindingKind, str] = {
    FindingKind.DANGLING_POINTER: _REPAIR,
    FindingKind.FOREIGN_LEDGER: _REPAIR,
    FindingKind.BAD_KEY: _REPAIR,
    FindingKind.UNREADABLE_SNAPSHOT: _REPAIR,
    FindingKind.UNREAD_SNAPSHOT: "bring the bookies back that hold it, then check again",
    FindingKind.UNREADABLE_NODE: "check again; if it stays, look at it by hand",
    FindingKind.WRONG_BITMAP: _REPAIR,
    FindingKind.WRONG_DELIVER_AT: _REPAIR,
    FindingKind.OUTSIDE_TOPIC: _REPAIR,
    FindingKind.OVERLAP: _REPAIR,
    FindingKind.DEAD_BUCKET: "load the topic on the bucket tracker, or, where it stays: " + _REPAIR,
    FindingKind.ORPHANED_BUCKET: (
        "run: pulsar-sidecar delayed-index repair --orphans; it attaches the bucket or hands it over"
    ),
    FindingKind.TRACKER_DOWNGRADE: (
        "set delayedDeliveryTrackerFactoryClassName back to the bucket tracker, or give the buckets up: "
        "pulsar-sidecar delayed-index repair --kind tracker-downgrade"
    ),
    FindingKind.UNUSABLE_SETTING: "set delayedDeliveryMaxNumBuckets to -1 and restart the broker",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        topic: a partition, or a topic without partitions; None for a broker's setting.
        bucket: the cursor property, or the one that the ledger's metadata names.
        ledger_id: the bucket's ledger.
        cause: what was read.
    """

    kind: FindingKind
    cause: str
    topic: TopicName | None = None
    subscription: str | None = None
    bucket: str | None = None
    ledger_id: LedgerId | None = None

    @property
    def place(self) -> tuple[object, ...]:
        """What is wrong where: the same whenever it is looked at, while numbers in the cause may change."""
        return self.kind, self.topic, self.subscription, self.bucket, self.ledger_id

    @property
    def consequence(self) -> str:
        """What it does to the topic."""
        return _CONSEQUENCES[self.kind]

    @property
    def remedy(self) -> str:
        """What to do."""
        return _REMEDIES[self.kind]


@dataclass(frozen=True, slots=True)
class Checked:
    """How much was looked at.

    Attributes:
        indexes: in buckets' segments.
        entries: messages compared with their index.
        entries_left: messages with an index that are not acknowledged, of which ``entries`` is a sample or all.
        ledgers: ledgers whose metadata was read in search of orphans; None if they were not searched.
    """

    topics: int = 0
    subscriptions: int = 0
    buckets: int = 0
    indexes: int = 0
    entries: int = 0
    entries_left: int = 0
    ledgers: int | None = None

    def __add__(self, other: "Checked") -> "Checked":
        return Checked(
            self.topics + other.topics,
            self.subscriptions + other.subscriptions,
            self.buckets + other.buckets,
            self.indexes + other.indexes,
            self.entries + other.entries,
            self.entries_left + other.entries_left,
            self.ledgers if other.ledgers is None else other.ledgers,
        )

    @property
    def wrong_share_bound(self) -> float:
        """If every entry compared was right: with 95 % confidence no larger share of them is wrong.

        0 if all were compared, 1 if none was.
        """
        if self.entries >= self.entries_left:
            return 0.0
        return 1.0 - 0.05 ** (1.0 / self.entries) if self.entries else 1.0


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check found.

    Attributes:
        seconds: how long it took.
    """

    findings: tuple[Finding, ...]
    checked: Checked = field(default_factory=Checked)
    seconds: float = 0.0
