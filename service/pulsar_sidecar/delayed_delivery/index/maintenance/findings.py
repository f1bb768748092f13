"""What can be wrong with a delayed index: each kind with its consequence and its remedy."""

import math
from dataclasses import dataclass
from enum import Enum
from typing import Final, Self

from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName

_MISSED: Final = 0.05
"""How probably a sample may miss that more is wrong than is reported."""


class RepairStep(Enum):
    """What a repair does about a bucket."""

    DROP_POINTER = "drop-pointer"
    """The cursor forgets the bucket; there is no ledger, or it is none of the subscription's."""
    RETIRE = "retire"
    """The deletion service gets the ledger, and the cursor forgets the bucket."""
    HAND_OVER = "hand-over"
    """The deletion service gets a ledger that no cursor points to."""
    ATTACH = "attach"
    """The cursor points to the bucket again: all of it is right."""

    @property
    def changes_cursor(self) -> bool:
        """Whether no broker may have the topic loaded meanwhile."""
        return self is not RepairStep.HAND_OVER


_FALLS_BACK: Final = (
    "the next broker that loads the topic falls back to the in-memory tracker for this subscription: it reads the "
    "backlog again, and the subscription's other buckets stay, unused, until the subscription is deleted"
)
_REPAIR: Final = "stop the topic's clients, unload it and run: pulsar-sidecar delayed-index repair"


class FindingKind(Enum):
    """What was found, with its consequence, its remedy and what `repair` does; docs/delayed-index.md has each.

    Attributes:
        step: None where a repair does nothing.
    """

    DANGLING_POINTER = "dangling-pointer", _FALLS_BACK, _REPAIR, RepairStep.DROP_POINTER
    """A cursor points to a ledger that does not exist."""
    FOREIGN_LEDGER = "foreign-ledger", _FALLS_BACK, _REPAIR, RepairStep.DROP_POINTER
    """A cursor points to a ledger that is not a bucket of its subscription."""
    BAD_KEY = (
        "bad-key",
        "no broker of 4.0.8 can make the subscription's tracker: from its first delayed message on the subscription "
        "delivers nothing, messages without a delay included",
        _REPAIR,
        RepairStep.RETIRE,
    )
    """A cursor property begins like a bucket's and names no range of ledgers."""
    UNREADABLE_SNAPSHOT = "unreadable-snapshot", _FALLS_BACK, _REPAIR, RepairStep.RETIRE
    """A bucket's entries were read and are not a snapshot, or no bookie has them any more."""
    UNREAD_SNAPSHOT = (
        "unread-snapshot",
        f"if brokers cannot read it either, {_FALLS_BACK}",
        "bring the bookies back that hold it, or upgrade the sidecar if a newer broker wrote it; then check again",
    )
    """Whether a bucket is sound is not known: bookies did not answer, or it holds more than this version knows."""
    UNREADABLE_NODE = (
        "unreadable-node",
        "the buckets that it names cannot be checked, or only in part; if the value of a bucket's property is not a "
        "ledger id, no broker of 4.0.8 can make the subscription's tracker: it delivers nothing",
        "check again; if it stays, inspect the node with bin/pulsar zookeeper-shell",
    )
    """A cursor's or a topic's node, or a ledger's, or what a cursor has acknowledged, cannot be read or understood."""
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
    """A segment names another due time than the message, or a message that is not delayed."""
    OUTSIDE_TOPIC = (
        "outside-topic",
        "a broker reads entries that do not exist, and counts them as delayed",
        _REPAIR,
        RepairStep.RETIRE,
    )
    """A bucket has indexes of entries that the topic does not have, beyond what is acknowledged."""
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
    """A bucket of which everything is due and acknowledged."""
    ORPHANED_BUCKET = (
        "orphaned-bucket",
        "it takes storage for ever, and no broker reads it",
        "run: pulsar-sidecar delayed-index repair --orphans; it attaches the bucket, hands it over, or leaves it while "
        "what it needs cannot be read",
        RepairStep.HAND_OVER,
    )
    """A bucket's ledger that no cursor points to."""
    TRACKER_DOWNGRADE = (
        "tracker-downgrade",
        "the buckets are not read, and not deleted with their subscription or topic: they become orphans then",
        "set delayedDeliveryTrackerFactoryClassName back to the bucket tracker, or give the buckets up: "
        "pulsar-sidecar delayed-index repair --kind tracker-downgrade",
        RepairStep.RETIRE,
    )
    """Buckets where brokers do not run the tracker that keeps and deletes them."""
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
        return self.kind.consequence

    @property
    def remedy(self) -> str:
        return self.kind.remedy


@dataclass(slots=True)
class Checked:
    """How much was looked at.

    Attributes:
        indexes: in buckets' segments.
        entries: messages compared with their index.
        entries_left: messages with an index that are not acknowledged, of which ``entries`` is a sample or all.
        unread: messages of the sample that could not be read.
        thinnest: of the buckets that a sample was taken of, the most messages for which one was compared.
        ledgers: ledgers whose metadata was read in search of orphans; None if they were not searched.
    """

    topics: int = 0
    subscriptions: int = 0
    buckets: int = 0
    indexes: int = 0
    entries: int = 0
    entries_left: int = 0
    unread: int = 0
    thinnest: float = 0.0
    ledgers: int | None = None

    def compare(self, left: int, sample: int, compared: int) -> None:
        """One bucket more: its messages, how many of them were to be compared, and how many could be."""
        self.entries_left += left
        self.entries += compared
        self.unread += sample - compared
        if compared < left:
            self.thinnest = max(self.thinnest, left / compared if compared else math.inf)

    @property
    def wrong_share_bound(self) -> float:
        """If every entry compared was right: with 95 % confidence no larger share of them is wrong.

        0 if all were compared, 1 if some could not be read: nothing is known of such.
        """
        if self.unread:
            return 1.0
        # Samples of n of a bucket's N miss a share p with a probability of at most exp(-p*n). All wrong ones together
        # are the most where all are in the bucket with the largest N/n.
        return min(1.0, math.log(1 / _MISSED) * self.thinnest / self.entries_left) if self.thinnest else 0.0
