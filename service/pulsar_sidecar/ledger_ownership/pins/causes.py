"""Why bytes stay, and what to do about each cause: the command, as an operator types it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

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
        command: what to type; None where there is no command for it.
    """

    what: str
    command: str | None = None


def remedies(cause: PinCause, topic: TopicName, holder: str) -> tuple[Remedy, ...]:
    """The remedies of a cause, the mildest first.

    Args:
        cause: why the ledgers stay.
        topic: a topic without partitions, or one partition.
        holder: the subscription, or the replicator's cursor.
    """
    made = _REMEDIES.get(cause)
    return () if made is None else made(_Names(topic, holder))


def deletion_of(topic: TopicName) -> tuple[Remedy, ...]:
    """The remedy of what goes only with the topic."""
    return (Remedy("delete the topic, once its messages are read", f"pulsar-admin topics delete {quoted(str(topic))}"),)


@dataclass(frozen=True, slots=True)
class _Names:
    """What commands name, quoted for a shell."""

    of_topic: TopicName
    of_holder: str

    @property
    def topic(self) -> str:
        return quoted(str(self.of_topic))

    @property
    def base(self) -> str:
        return quoted(str(self.of_topic.base))

    @property
    def namespace(self) -> str:
        return quoted(self.of_topic.namespace)

    @property
    def subscription(self) -> str:
        return quoted(self.of_holder)

    @property
    def cluster(self) -> str:
        return self.of_holder.rpartition(".")[2]


def _subscription(*first: Remedy) -> Callable[[_Names], tuple[Remedy, ...]]:
    """What helps with every subscription, after what helps with this one; its commands take the names."""

    def made(names: _Names) -> tuple[Remedy, ...]:
        return (
            *(Remedy(each.what, each.command and each.command.format(names=names)) for each in first),
            Remedy(
                "skip everything that waits: the subscription never gets it",
                f"pulsar-admin topics clear-backlog -s {names.subscription} {names.topic}",
            ),
            Remedy(
                "delete the subscription, if no consumer needs it any more",
                f"pulsar-admin topics unsubscribe -s {names.subscription} {names.topic}",
            ),
        )

    return made


def _topic(*given: Remedy) -> Callable[[_Names], tuple[Remedy, ...]]:
    return lambda names: tuple(
        Remedy(each.what.format(names=names), each.command and each.command.format(names=names)) for each in given
    )


_DELAYED: Final = _subscription(
    Remedy("wait until they are due, with consumers connected"),
    Remedy(
        "cancel delayed messages, after a preview",
        "pulsar-sidecar topics cancel-delayed-messages {names.topic} -s {names.subscription} --due-from 0",
    ),
)
_TRIM: Final = _topic(
    Remedy("have a broker load the topic and trim it", "pulsar-admin topics trim-topic {names.topic}")
)
_AGAIN: Final = _topic(Remedy("ask again", "pulsar-sidecar pins topic {names.topic}"))
_REMEDIES: Final[Mapping[PinCause, Callable[[_Names], tuple[Remedy, ...]]]] = {
    PinCause.BACKLOG: _subscription(Remedy("start its consumers, and let them acknowledge")),
    PinCause.ACKNOWLEDGEMENT_HOLES: _subscription(
        Remedy(
            "see what is not acknowledged, and have its consumers acknowledge it",
            "pulsar-sidecar subscriptions ack-state {names.topic} -s {names.subscription}",
        )
    ),
    PinCause.DELAYED_MESSAGES: _DELAYED,
    PinCause.DELAYED_INDEX: _DELAYED,
    PinCause.REPLICATION: _topic(
        Remedy("make the cluster {names.cluster} reachable"),
        Remedy(
            "stop replicating the namespace there: what was not sent is not sent",
            "pulsar-admin namespaces set-clusters --clusters REMAINING {names.namespace}",
        ),
    ),
    PinCause.DEDUPLICATION_SNAPSHOT: _topic(
        Remedy("have a broker load the topic: it takes snapshots", "pulsar-admin topics stats {names.topic}"),
        Remedy("see what holds the snapshot back", "pulsar-sidecar deduplication show {names.topic}"),
        Remedy(
            "disable deduplication: brokers forget what producers have sent",
            "pulsar-admin topicPolicies set-deduplication --disable {names.base}",
        ),
    ),
    PinCause.COMPACTION: _topic(Remedy("compact the topic", "pulsar-admin topics compact {names.topic}")),
    PinCause.RETENTION: _topic(
        Remedy(
            "retain less: what is acknowledged cannot be read again",
            "pulsar-admin topicPolicies set-retention --time 0 --size 0 {names.base}",
        )
    ),
    PinCause.LAST_LEDGER: _topic(
        Remedy("have the topic begin a new one: clients reconnect", "pulsar-admin topics unload {names.topic}")
    ),
    PinCause.NOT_LOADED: _TRIM,
    PinCause.NEXT_TRIM: _TRIM,
    PinCause.OFFLOAD_LAG: _topic(
        Remedy(
            "have brokers delete BookKeeper's copies sooner: they then read from tiered storage",
            "pulsar-admin namespaces set-offload-deletion-lag --lag 0s {names.namespace}",
        )
    ),
    PinCause.COMPACTED_LEDGER: _topic(
        Remedy(
            "give up the compacted view; the next compaction makes a new one",
            "pulsar-admin topics unsubscribe -s __compaction {names.topic}",
        )
    ),
    PinCause.SCHEMA: _topic(
        Remedy("delete the schema, if no client needs it any more", "pulsar-admin schemas delete {names.base}")
    ),
    PinCause.UNREADABLE_CURSOR: _AGAIN,
    PinCause.UNREADABLE_LENGTH: _AGAIN,
    PinCause.UNREADABLE_RETENTION: _AGAIN,
}
