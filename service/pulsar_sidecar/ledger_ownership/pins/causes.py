"""Why bytes stay, and what to do about each cause: the command, as an operator types it.

Only a broker that has a topic loaded trims it: a command that has none load the topic is followed by one that does.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pulsar_sidecar.ledger_ownership.pins.ports import BookieFigures
from pulsar_sidecar.model.ids import BookieId
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.printable import quoted


class PinCause(StrEnum):
    """What keeps ledgers."""

    BACKLOG = "backlog"
    """A subscription has not acknowledged the first messages."""
    ACKNOWLEDGEMENT_HOLES = "acknowledgement-holes"
    """A subscription has acknowledged later messages, and not the first ones."""
    DELAYED_MESSAGES = "delayed-messages"
    """The first message that a subscription has not acknowledged is not due yet."""
    REPLICATION = "replication"
    """A replicator has not sent the first messages to its cluster."""
    DEDUPLICATION_SNAPSHOT = "deduplication-snapshot"
    """The last snapshot of deduplication is that old."""
    COMPACTION = "compaction"
    """The last compaction is that old."""
    UNREADABLE_CURSOR = "unreadable-cursor"
    """A cursor cannot be read, so it may hold everything."""
    UNREADABLE_METADATA = "unreadable-metadata"
    """BookKeeper's metadata of the ledger cannot be read: brokers cannot delete it, and its copies are not counted."""
    UNREADABLE_LENGTH = "unreadable-length"
    """Bookies do not answer how long the ledger is that the topic writes to, so its bytes are not known."""
    RETENTION = "retention"
    """The topic's retention has not passed."""
    UNREADABLE_RETENTION = "unreadable-retention"
    """The topic's retention cannot be read, so it may hold everything."""
    LAST_LEDGER = "last-ledger"
    """The topic writes to it, or was terminated with it."""
    NOT_LOADED = "not-loaded"
    """Nothing else holds them, and no broker has the topic loaded, so none trims it."""
    NEXT_TRIM = "next-trim"
    """Nothing else holds them: the broker trims them when it looks next."""
    OFFLOAD_LAG = "offload-deletion-lag"
    """Tiered storage has them, and BookKeeper keeps its copy for so long."""
    DELAYED_INDEX = "delayed-index"
    """Buckets of a subscription's delayed messages."""
    COMPACTED_LEDGER = "compacted-ledger"
    """The compacted view of the topic."""
    CURSOR_LEDGER = "cursor-ledger"
    """A cursor's state."""
    SCHEMA = "schema"
    """A version of the topic's schema."""
    UNREFERENCED = "unreferenced"
    """Nothing references it: it may have leaked."""
    NOT_PULSARS = "not-pulsars"
    """Its metadata names no topic."""
    NOT_COLLECTED = "not-collected"
    """It is deleted, and bookies have not collected it yet."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """One way to let go.

    Attributes:
        what: what it does, and what it costs.
        command: what to type, which may be several commands after each other; None where there is none for it.
    """

    what: str
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """What a pin holds, as far as its remedies depend on it.

    Attributes:
        topic: a topic without partitions, or one partition.
        holder: the subscription, or the replicator's cursor.
        is_loaded: whether a broker has the topic loaded.
        is_terminated: it is not written to any more.
        replicated_to: the clusters that keep the topic, where that is known.
        component: what `topics delete-ledger` is told of a ledger that nothing references.
    """

    topic: TopicName
    holder: str = ""
    is_loaded: bool = True
    is_terminated: bool = False
    replicated_to: frozenset[str] = frozenset()
    component: str = ""

    @property
    def quoted_topic(self) -> str:
        return quoted(str(self.topic))

    @property
    def quoted_base(self) -> str:
        return quoted(str(self.topic.base))

    @property
    def of_subscription(self) -> str:
        """Options that name the subscription, and the topic."""
        return f"-s {quoted(self.holder)} {self.quoted_topic}"

    def then_trimmed(self, command: str) -> str:
        """Followed by what has a broker load the topic and trim it."""
        return f"{command} && {self.trimmed}"

    @property
    def trimmed(self) -> str:
        return f"pulsar-admin topics trim-topic {self.quoted_topic}"


def remedies(cause: PinCause, held: Held) -> tuple[Remedy, ...]:
    """The remedies of a cause, the mildest first."""
    made = _REMEDIES.get(cause)
    return () if made is None else tuple(made(held))


def _subscription(held: Held) -> list[Remedy]:
    """What helps with every subscription."""
    return [
        Remedy(
            "skip everything that waits: the subscription never gets it",
            f"pulsar-admin topics clear-backlog {held.of_subscription}",
        ),
        Remedy(
            "delete the subscription, if no consumer needs it any more",
            f"pulsar-admin topics unsubscribe {held.of_subscription}",
        ),
    ]


def _backlog(held: Held) -> list[Remedy]:
    return [Remedy("start its consumers, and let them acknowledge"), *_subscription(held)]


def _holes(held: Held) -> list[Remedy]:
    what = "see what is not acknowledged, and have its consumers acknowledge it"
    command = f"pulsar-sidecar subscriptions ack-state {held.quoted_topic} -s {quoted(held.holder)}"
    return [Remedy(what, command), *_subscription(held)]


def _delayed(held: Held) -> list[Remedy]:
    command = f"pulsar-sidecar topics cancel-delayed-messages {held.quoted_topic} -s {quoted(held.holder)} --due-from 0"
    return [
        Remedy("wait until they are due, with consumers connected"),
        Remedy("cancel delayed messages, after a preview", command),
        *_subscription(held),
    ]


def _replication(held: Held) -> list[Remedy]:
    cluster = held.holder.rpartition(".")[2]
    reach = Remedy(f"make the cluster {cluster} reachable")
    others = ",".join(sorted(held.replicated_to - {cluster}))
    if not others or cluster not in held.replicated_to:
        return [reach]
    set_clusters = f"pulsar-admin topics set-replication-clusters -c {quoted(others)} {held.quoted_base}"
    what = "stop replicating the topic there: what was not sent is not sent"
    return [reach, Remedy(what, held.then_trimmed(set_clusters))]


def _deduplication(held: Held) -> list[Remedy]:
    next_one = Remedy("wait: its broker takes a snapshot every brokerDeduplicationSnapshotIntervalSeconds")
    load = Remedy(
        "have a broker load the topic, and keep it loaded until it has taken a snapshot and trimmed, some minutes",
        held.trimmed,
    )
    disable = f"pulsar-admin topicPolicies set-deduplication --disable {held.quoted_base}"
    return [
        next_one if held.is_loaded else load,
        Remedy("see what holds the snapshot back", f"pulsar-sidecar deduplication show {held.quoted_topic}"),
        Remedy("disable deduplication: brokers forget what producers have sent", held.then_trimmed(disable)),
    ]


def _compaction(held: Held) -> list[Remedy]:
    return [Remedy("compact the topic", f"pulsar-admin topics compact {held.quoted_topic}")]


def _retention(held: Held) -> list[Remedy]:
    shorten = f"pulsar-admin topicPolicies set-retention --time 0 --size 0 {held.quoted_base}"
    return [Remedy("retain less: what is acknowledged cannot be read again", held.then_trimmed(shorten))]


def _last_ledger(held: Held) -> list[Remedy]:
    if not held.is_terminated:
        unload = f"pulsar-admin topics unload {held.quoted_topic}"
        return [Remedy("have the topic begin a new one, and trim: clients reconnect", held.then_trimmed(unload))]
    if held.topic.partition_index is not None:
        whole = f"pulsar-sidecar topics delete --partitioned {held.quoted_base}"
        return [Remedy("delete the topic with all its partitions, once their messages are read", whole)]
    return [Remedy("delete the topic, once its messages are read", f"pulsar-sidecar topics delete {held.quoted_topic}")]


def _trim(held: Held) -> list[Remedy]:
    return [
        Remedy("trim the topic now" if held.is_loaded else "have a broker load the topic and trim it", held.trimmed)
    ]


def _offload_lag(held: Held) -> list[Remedy]:
    lag = f"pulsar-admin namespaces set-offload-deletion-lag --lag 0s {quoted(held.topic.namespace)}"
    what = "have brokers delete BookKeeper's copies sooner: they then read from tiered storage"
    return [Remedy(what, held.then_trimmed(lag))]


def _compacted_ledger(held: Held) -> list[Remedy]:
    drop = f"pulsar-admin topics unsubscribe -s __compaction {held.quoted_topic}"
    return [Remedy("give up the compacted view; the next compaction makes a new one", drop)]


def _cursor_ledger(held: Held) -> list[Remedy]:
    unload = f"pulsar-admin topics unload {held.quoted_topic}"
    return [Remedy("have the broker keep the cursor in the metadata store, if it fits: clients reconnect", unload)]


def _schema(held: Held) -> list[Remedy]:
    delete = f"pulsar-admin schemas delete --force {held.quoted_base}"
    return [Remedy("delete all versions of the schema, if no client needs them any more", delete)]


def _unreferenced(held: Held) -> list[Remedy]:
    command = f"pulsar-sidecar topics delete-ledger {held.quoted_base}{held.component}"
    return [Remedy("have the sidecar check it once more, and delete it if nothing references it", command)]


def _again(held: Held) -> list[Remedy]:
    return [Remedy("ask again", f"pulsar-sidecar pins topic {held.quoted_topic}")]


_REMEDIES: Final[Mapping[PinCause, Callable[[Held], list[Remedy]]]] = {
    PinCause.BACKLOG: _backlog,
    PinCause.ACKNOWLEDGEMENT_HOLES: _holes,
    PinCause.DELAYED_MESSAGES: _delayed,
    PinCause.DELAYED_INDEX: _delayed,
    PinCause.REPLICATION: _replication,
    PinCause.DEDUPLICATION_SNAPSHOT: _deduplication,
    PinCause.COMPACTION: _compaction,
    PinCause.RETENTION: _retention,
    PinCause.LAST_LEDGER: _last_ledger,
    PinCause.NOT_LOADED: _trim,
    PinCause.NEXT_TRIM: _trim,
    PinCause.OFFLOAD_LAG: _offload_lag,
    PinCause.COMPACTED_LEDGER: _compacted_ledger,
    PinCause.CURSOR_LEDGER: _cursor_ledger,
    PinCause.SCHEMA: _schema,
    PinCause.UNREFERENCED: _unreferenced,
    PinCause.UNREADABLE_CURSOR: _again,
    PinCause.UNREADABLE_LENGTH: _again,
    PinCause.UNREADABLE_METADATA: _again,
    PinCause.UNREADABLE_RETENTION: _again,
}


# --- of bookies ----------------------------------------------------------------------------------------------------


def starting(bookie: BookieId) -> tuple[Remedy, ...]:
    return (
        Remedy("start the bookie: what its ledgers have there cannot be collected before"),
        Remedy(
            "if its disks are lost, have the other bookies copy its ledgers, and forget it",
            f"bookkeeper shell decommissionbookie -bookieid {quoted(bookie)}",
        ),
    )


def collecting(figures: BookieFigures) -> tuple[Remedy, ...]:
    """What gets deleted bytes off a bookie's disks."""
    gc = f"{figures.http_url}/api/v1/bookie/gc"
    return (
        _resuming(gc) if figures.minor.is_suspended or figures.major.is_suspended else Remedy(_waiting(figures)),
        Remedy(
            "have it collect and compact now, which costs disk bandwidth",
            _put({"forceMajor": True, "forceMinor": True}, gc),
        ),
    )


def _resuming(gc: str) -> Remedy:
    return Remedy(
        "resume its compaction, which is suspended: by an operator, or by the bookie while its disks are too full",
        _put({"resumeMajor": True, "resumeMinor": True}, f"{gc}/resume_compaction"),
    )


def _put(body: Mapping[str, bool], url: str) -> str:
    return f"curl -X PUT -d '{json.dumps(body)}' {quoted(url)}"


def _waiting(figures: BookieFigures) -> str:
    wait = f"wait: it collects every {figures.gc_wait_seconds:,.0f} s, and compacts entry logs that are less full than "
    return f"{wait}{figures.minor.threshold:.0%} (minor), {figures.major.threshold:.0%} (major)"
