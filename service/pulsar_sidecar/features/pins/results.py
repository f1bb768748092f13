"""Results about the pins of a ledger, a topic, a namespace or a bookie.

Sizes are given twice: one copy, as brokers report it, and all copies on bookies.
"""

from enum import StrEnum
from typing import Final

from pulsar_sidecar.model.results import result
from pulsar_sidecar.ownership.registrations import BookieState

LISTED: Final = 100
"""Maximum number of ledgers, and of topics, that a response names."""


class PinCause(StrEnum):
    """Reason why a ledger is not deleted."""

    BACKLOG = "backlog"
    """A subscription has not acknowledged the first messages."""
    ACKNOWLEDGEMENT_HOLES = "acknowledgement-holes"
    """A subscription has acknowledged later messages, and not the first ones."""
    DELAYED_MESSAGES = "delayed-messages"
    """The first message that a subscription has not acknowledged is not due yet."""
    REPLICATION = "replication"
    """A replicator has not sent the first messages to its cluster."""
    DEDUPLICATION_SNAPSHOT = "deduplication-snapshot"
    """The last snapshot of deduplication does not cover the ledgers."""
    COMPACTION = "compaction"
    """The last compaction does not cover the ledgers."""
    UNREADABLE_CURSOR = "unreadable-cursor"
    """A cursor cannot be read, so it may hold everything."""
    UNREADABLE_METADATA = "unreadable-metadata"
    """BookKeeper's metadata of the ledger cannot be read: brokers cannot delete it, and its copies are not counted."""
    UNREADABLE_LENGTH = "unreadable-length"
    """Bookies do not report the length of the ledger that the topic writes to, so its bytes are unknown."""
    RETENTION = "retention"
    """The topic's retention still covers the ledgers."""
    UNREADABLE_RETENTION = "unreadable-retention"
    """The topic's retention cannot be read, so it may hold everything."""
    LAST_LEDGER = "last-ledger"
    """The ledger that the topic writes to, or was terminated with."""
    NOT_LOADED = "not-loaded"
    """Nothing else holds the ledgers, and no broker has loaded the topic, so none trims it."""
    NEXT_TRIM = "next-trim"
    """Nothing else holds the ledgers: the broker's next trim deletes them."""
    OFFLOAD_LAG = "offload-deletion-lag"
    """Tiered storage has the ledgers, and BookKeeper keeps its copies until the lag is over."""
    REPLACED_COPY = "replaced-copy"
    """By the list, tiered storage has the only copy, and BookKeeper still has the ledger: it has leaked."""
    DELAYED_INDEX = "delayed-index"
    """Buckets of a subscription's delayed messages."""
    COMPACTED_LEDGER = "compacted-ledger"
    """The compacted view of the topic."""
    CURSOR_LEDGER = "cursor-ledger"
    """A cursor's state."""
    SCHEMA = "schema"
    """A version of the topic's schema."""
    UNREFERENCED = "unreferenced"
    """Nothing references the ledger: it may have leaked."""
    NOT_PULSARS = "not-pulsars"
    """The ledger's metadata names no topic."""
    NOT_COLLECTED = "not-collected"
    """The ledger is deleted, and bookies have not collected it yet."""


@result
class Remedy:
    """Way to release pinned ledgers."""

    what: str
    """Effect and cost."""
    command: str | None = None
    """One or more commands; null if there is none."""


@result
class Pin:
    """Holder of ledgers."""

    cause: PinCause
    """Cause of the pin."""
    holder: str
    """The subscription, or a broker's internal cursor; empty if the topic itself is the holder."""
    detail: str
    """Evidence."""
    ledgers: int
    """Number of held ledgers."""
    ledger_ids: tuple[int, ...]
    """The first hundred held ledgers."""
    bytes: int
    """Bytes of these ledgers, one copy."""
    on_bookies_bytes: int
    """Bytes of all their copies on bookies."""
    frees_bytes: int
    """Bytes that releasing this pin alone frees, one copy."""
    frees_on_bookies_bytes: int
    """Bytes that releasing this pin alone frees on bookies, all copies, after their next garbage collection."""
    also_held_by: tuple[str, ...]
    """Other pins that hold some of these ledgers: cause and holder."""
    ends_ms: int | None
    """Time at which the pin expires; null if it never does, does only after a broker loads the topic, or is unknown."""
    remedies: tuple[Remedy, ...]
    """Remedies, least disruptive first."""

    @property
    def name(self) -> str:
        """Cause and holder, by which other pins refer to it."""
        return f"{self.cause} {self.holder}".strip()


@result
class LedgersHeldTogether:
    """Ledgers that the same pins hold, and that only releasing all of these frees."""

    pins: tuple[str, ...]
    """Cause and holder of each."""
    ledgers: int
    """Number of ledgers."""
    bytes: int
    """Bytes of these ledgers, one copy."""
    on_bookies_bytes: int
    """Bytes of all their copies on bookies."""


@result
class TopicPins:
    """Pins of a topic without partitions, or of one partition."""

    topic: str
    """The topic, or the partition."""
    read_ms: int
    """Time of reading."""
    loaded_by: str | None
    """The broker that has loaded it; null if none has; then none of it is trimmed."""
    shadow_of: str | None
    """The source topic of a shadow topic (PIP-180), which holds the ledgers."""
    ledgers: int
    """Number of ledgers in the topic's list."""
    bytes: int
    """Bytes of these ledgers and of those that its cursors name, one copy."""
    on_bookies_bytes: int
    """Bytes of all copies on bookies."""
    tiered_bytes: int
    """Bytes of the list in tiered storage."""
    tiered_and_bookies_bytes: int
    """Bytes of these that BookKeeper keeps as well until the deletion lag is over, one copy."""
    tiered_alone_ledgers: int
    """Number of ledgers that brokers read only from tiered storage (``bookkeeperDeleted``)."""
    tiered_alone_bytes: int
    """Bytes of these ledgers."""
    pins: tuple[Pin, ...]
    """Pins, the largest first."""
    held: tuple[LedgersHeldTogether, ...]
    """All held ledgers, grouped by their pins, each counted once; the largest group first."""


@result
class NamespacePins:
    """Pins of the largest topics of a namespace."""

    namespace: str
    read_ms: int
    """Time of reading."""
    topics: int
    """Number of topics, including each partition."""
    listed_bytes: int
    """Bytes in the topics' lists, one copy, without the ledgers being written."""
    tiered_bytes: int
    """Bytes of these in tiered storage."""
    tiered_alone_bytes: int
    """Bytes that brokers read only from tiered storage (``bookkeeperDeleted``)."""
    unreadable: int
    """Number of topics whose lists cannot be read, and that this response omits."""
    unreadable_topics: tuple[str, ...]
    """The first hundred unreadable topics."""
    largest: tuple[TopicPins, ...]
    """The requested page of topics, the largest first."""


@result
class LedgerPins:
    """Pins of one ledger."""

    ledger_id: int
    read_ms: int
    """Time of reading."""
    topic: str | None
    """The topic that the ledger's metadata names; null if there is none."""
    kind: str | None
    """Purpose of the ledger; null once its metadata is gone."""
    bytes: int
    """Bytes, one copy."""
    on_bookies_bytes: int
    """Bytes of all copies on bookies."""
    pins: tuple[Pin, ...]
    """Pins of the ledger."""
    bookies: tuple[str, ...] = ()
    """Bookies that hold its entries; only for a ledger whose metadata is gone."""


@result
class Share:
    """Ledgers of one owner on a bookie."""

    owner: str | None
    """A namespace, or a topic; null for ledgers that name no topic."""
    ledgers: int
    """Number of ledgers."""
    size_bytes: int
    """Bytes on this bookie."""


@result
class Compaction:
    """Compaction of a bookie's entry logs."""

    threshold: float
    """Fill level below which the bookie compacts an entry log."""
    interval_seconds: float
    """Time between two compactions; 0 is never."""
    is_suspended: bool = False
    """True if an operator, or the bookie while its disks are too full, has suspended it."""


@result
class BookieFigures:
    """A bookie's own figures and settings, which do not include the sizes of its files."""

    http_url: str
    """URL of its HTTP service."""
    live_bytes: int
    """Bytes of the ledgers that existed at its last collection, in the remaining entry logs."""
    entry_logs: int
    """Number of entry logs after its last collection, without the one being written."""
    disk_used_bytes: int
    """Used bytes of its ledgers' disks, including other files."""
    disk_total_bytes: int
    """Bytes of these disks."""
    ledgers: int
    """Number of ledgers in its index at its last collection."""
    gc_wait_seconds: float
    """Time between two collections (``gcWaitTime``)."""
    entry_log_limit_bytes: int
    """Size at which the bookie closes an entry log, which it collects only then (``logSizeLimit``)."""
    minor: Compaction
    """Minor compaction."""
    major: Compaction
    """Major compaction."""
    is_collecting: bool
    """True during a collection on request."""


@result
class BookiePins:
    """Ledgers that a bookie keeps, and bytes that it has not collected."""

    bookie: str
    state: BookieState
    """``down`` if it is not registered although it has a cookie, or ledgers name it."""
    read_ms: int
    """Time at which all ledgers were read; the bookie's figures are current."""
    ledgers: int
    """Number of ledgers with entries on the bookie, by their metadata."""
    open_ledgers: int
    """Number of these ledgers that are being written; their bytes are not counted."""
    size_bytes: int
    """Bytes of the other ledgers on this bookie."""
    figures: BookieFigures | None
    """The bookie's own figures; null if they cannot be read."""
    problem: str | None
    """Reason why the figures cannot be read."""
    uncollected_at_most_bytes: int | None
    """Upper bound of deleted ledgers' bytes after its last collection, as if all entry logs, including the one being
    written, were full: a bookie does not report their sizes. Null if its figures cannot be read."""
    uncollected_ledgers: int | None
    """Number of ledgers in its index that no longer exist."""
    unreadable_ledgers: int
    """Number of ledgers on any bookie whose metadata cannot be read; this bookie may hold entries of them."""
    unreadable_ledger_ids: tuple[int, ...]
    """The first hundred unreadable ledgers."""
    remedies: tuple[Remedy, ...]
    """Remedies, least disruptive first."""
    owners: int = 0
    """Number of owners."""
    shares: tuple[Share, ...] = ()
    """The requested page of owners, the largest first."""


# --- unloaded topics past their retention --------------------------------------------------------------------------


class Obstacle(StrEnum):
    """Reason for which the sweep does not load a topic."""

    BEING_DELETED = "being-deleted"
    """Its deletion, or its namespace's, has begun."""
    SHADOW = "shadow"
    """Brokers would delete the ledgers of its source."""
    OTHER_CLUSTERS = "other-clusters"
    """Its replication clusters do not include this one."""
    INACTIVE = "deleted-while-inactive"
    """Brokers delete inactive topics, and it has no subscription that prevents this."""
    SUBSCRIPTIONS_EXPIRE = "subscriptions-expire"
    """Brokers delete inactive subscriptions."""
    MESSAGES_EXPIRE = "messages-expire"
    """Brokers skip messages that a subscription has not acknowledged."""
    UNREADABLE_POLICIES = "unreadable-policies"
    """The policies that decide this cannot be read."""
    UNOWNED_BUNDLE = "unowned-bundle"
    """No broker owns the bundle of the namespace's ``__change_events``: a question about a policy makes a broker own
    it, which then loads all topics of the bundle. The bytes are those without any retention."""


@result
class UnloadedTopic:
    """Topic without partitions, or partition, that no broker has loaded, with ledgers that a broker would trim."""

    topic: str
    ledgers: int
    """Number of these ledgers."""
    ledger_ids: tuple[int, ...]
    """These ledgers."""
    bytes: int
    """Bytes of these ledgers, one copy."""
    on_bookies_bytes: int
    """Bytes of all their copies on bookies."""
    obstacle: Obstacle | None
    """Reason for which the sweep does not load the topic; null if there is none."""
    detail: str
    """Evidence of the obstacle."""


@result
class UnloadedTopics:
    """Page of topics that no broker has loaded and that are past their retention."""

    read_ms: int
    """Time of reading."""
    examined: int
    """Number of topics on this page, including each partition but no topics of the brokers' own."""
    loaded: int
    """Number of these that a broker has loaded, and so trims itself."""
    topics: tuple[UnloadedTopic, ...]
    """Topics with ledgers that a broker would trim."""
    unreadable: tuple[str, ...]
    """Topics whose lists cannot be read."""
    after: str | None
    """Last topic of this page, from which the next one continues; null at the end."""
    remaining: int
    """Number of topics after this page."""


@result
class Reclaimable:
    """Bytes that a sweep frees of one owner, or leaves for one reason."""

    name: str
    """A tenant, a namespace, or an obstacle."""
    topics: int
    """Number of topics, including each partition."""
    ledgers: int
    """Number of ledgers."""
    bytes: int
    """Bytes of these ledgers, one copy."""
    on_bookies_bytes: int
    """Bytes of all their copies on bookies."""
    price_per_month: float | None
    """Price of these copies for a month; null if no price was given."""


@result
class SweepPlan:
    """Bytes that a sweep would free."""

    read_ms: int
    """Time of reading the first page."""
    examined: int
    """Number of topics, including each partition."""
    loaded: int
    """Number of these that a broker has loaded."""
    unreadable: tuple[str, ...]
    """Topics whose lists cannot be read."""
    freed: Reclaimable
    """All that the sweep frees."""
    tenants: tuple[Reclaimable, ...]
    """The same by tenant, the largest first."""
    namespaces: tuple[Reclaimable, ...]
    """The same by namespace, the largest first."""
    left: tuple[Reclaimable, ...]
    """Bytes that the sweep leaves, by obstacle."""
    topics: tuple[UnloadedTopic, ...]
    """All these topics, including those with an obstacle, the largest first."""


class TrimState(StrEnum):
    """End of the sweep's work on one topic."""

    TRIMMED = "trimmed"
    """Its broker has deleted the ledgers."""
    UNFINISHED = "unfinished"
    """Its broker has not deleted all of them in time; a repeated sweep checks again."""
    NOTHING_LEFT = "nothing-left"
    """It has no ledgers past its retention."""
    LOADED = "loaded"
    """A broker has loaded it, and so trims it itself."""
    OBSTACLE = "obstacle"
    """Loading it could do more than trim it."""
    BROKERS_BUSY = "brokers-busy"
    """A broker's load is above the limit."""
    FAILED = "failed"
    """The sidecar returned an error; only commands write this."""


@result
class TrimmedTopic:
    """Topic that the sweep has loaded, trimmed and unloaded again, or the reason why not."""

    topic: str
    state: TrimState
    detail: str
    """Reason for any other state than ``trimmed``, or why the topic stays loaded; empty if there is none."""
    ledgers: int = 0
    """Number of deleted ledgers."""
    bytes: int = 0
    """Bytes of these ledgers, one copy."""
    on_bookies_bytes: int = 0
    """Bytes of all their copies on bookies, which these free at their next collections."""


@result
class SweepRun:
    """Space that a sweep has freed."""

    planned_topics: int
    """Number of topics that it meant to trim."""
    trimmed_topics: int
    ledgers: int
    """Number of deleted ledgers."""
    bytes: int
    """Bytes of these ledgers, one copy."""
    on_bookies_bytes: int
    """Bytes of all their copies on bookies."""
    others: tuple[TrimmedTopic, ...]
    """Topics that were not trimmed, or stay loaded, with the reasons."""
    stopped: str | None
    """Reason why it stopped before the end; null if it did not."""
