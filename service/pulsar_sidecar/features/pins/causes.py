"""Remedies of each cause, with the commands that an operator types.

Only a broker that has loaded a topic trims it, so a command that does not load the topic is followed by one that does.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pulsar_sidecar.features.pins.results import BookieFigures, PinCause, Remedy
from pulsar_sidecar.model.ids import BookieId
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.printable import quoted
from pulsar_sidecar.model.topic_stats import remote_cluster


@dataclass(frozen=True, slots=True)
class Held:
    """Facts about a pin that its remedies depend on.

    Attributes:
        topic: a topic without partitions, or one partition.
        holder: the subscription, or the replicator's cursor.
        is_loaded: True if a broker has loaded the topic.
        is_terminated: True if the topic is terminated.
        replicated_to: clusters that keep the topic; empty if unknown.
        replicators: True for remote clusters to which the topic's broker is connected.
        component: options of `topics delete-ledger` for a ledger that leaked.
    """

    topic: TopicName
    holder: str = ""
    is_loaded: bool = True
    is_terminated: bool = False
    replicated_to: frozenset[str] = frozenset()
    replicators: Mapping[str, bool] = field(default_factory=dict)
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
        """Append the command by which a broker loads the topic and trims it."""
        return f"{command} && {self.trimmed}"

    @property
    def trimmed(self) -> str:
        return f"pulsar-admin topics trim-topic {self.quoted_topic}"


def remedies(cause: PinCause, held: Held) -> tuple[Remedy, ...]:
    """Return the remedies of a cause, least disruptive first."""
    made = _REMEDIES.get(cause)
    return () if made is None else tuple(made(held))


def _subscription(held: Held) -> list[Remedy]:
    """Return the remedies for every subscription."""
    return [
        Remedy(
            "skip the backlog: the subscription never receives it",
            f"pulsar-admin topics clear-backlog {held.of_subscription}",
        ),
        Remedy(
            "delete the subscription if no consumer needs it",
            f"pulsar-admin topics unsubscribe {held.of_subscription}",
        ),
    ]


def _backlog(held: Held) -> list[Remedy]:
    return [Remedy("start its consumers, so that they acknowledge the backlog"), *_subscription(held)]


def _holes(held: Held) -> list[Remedy]:
    what = "list the unacknowledged ranges, and acknowledge them by a consumer"
    command = f"pulsar-sidecar subscriptions ack-state {held.quoted_topic} -s {quoted(held.holder)}"
    return [Remedy(what, command), *_subscription(held)]


def _delayed(held: Held) -> list[Remedy]:
    command = f"pulsar-sidecar topics cancel-delayed-messages {held.quoted_topic} -s {quoted(held.holder)} --due-from 0"
    return [
        Remedy("wait until the messages are due, with consumers connected"),
        Remedy("cancel delayed messages, after a preview", command),
        *_subscription(held),
    ]


def _replication(held: Held) -> list[Remedy]:
    cluster = remote_cluster(held.holder) or ""
    if held.replicated_to and cluster not in held.replicated_to:
        unload = f"pulsar-admin topics unload {held.quoted_topic}"
        command = held.then_trimmed(unload) if held.is_loaded else held.trimmed
        return [Remedy("load the topic, so that its broker drops the cursor, and trim it", command)]
    skip = Remedy(
        "skip the backlog: these messages are not replicated",
        f"pulsar-admin topics clear-backlog {held.of_subscription}",
    )
    kept = [_reaching(cluster, held), skip]
    others = ",".join(sorted(held.replicated_to - {cluster}))
    if not others:
        return kept
    set_clusters = f"pulsar-admin topics set-replication-clusters -c {quoted(others)} {held.quoted_base}"
    what = "stop replicating the topic to this cluster: pending messages are not replicated"
    return [*kept, Remedy(what, held.then_trimmed(set_clusters))]


def _reaching(cluster: str, held: Held) -> Remedy:
    if not held.is_loaded:
        return Remedy("load the topic, and keep it loaded: only such a topic is replicated", held.trimmed)
    if held.replicators.get(cluster):
        return Remedy("wait while the backlog shrinks; if it does not, the log of the topic's broker has the reason")
    return Remedy(
        f"make the cluster {cluster} reachable, and see that the topic can be created there: the log of the topic's "
        "broker has the reason why it is not connected"
    )


def _deduplication(held: Held) -> list[Remedy]:
    next_one = Remedy("wait: its broker takes a snapshot every brokerDeduplicationSnapshotIntervalSeconds")
    load = Remedy(
        "load the topic, and keep it loaded for some minutes, until its broker has taken a snapshot and trimmed",
        held.trimmed,
    )
    disable = f"pulsar-admin topicPolicies set-deduplication --disable {held.quoted_base}"
    return [
        next_one if held.is_loaded else load,
        Remedy("show why no newer snapshot was taken", f"pulsar-sidecar deduplication show {held.quoted_topic}"),
        Remedy("disable deduplication: brokers drop their producers' sequence ids", held.then_trimmed(disable)),
    ]


def _compaction(held: Held) -> list[Remedy]:
    return [Remedy("compact the topic", f"pulsar-admin topics compact {held.quoted_topic}")]


def _retention(held: Held) -> list[Remedy]:
    shorten = f"pulsar-admin topicPolicies set-retention --time 0 --size 0 {held.quoted_base}"
    return [Remedy("reduce retention: acknowledged messages can then no longer be read", held.then_trimmed(shorten))]


def _last_ledger(held: Held) -> list[Remedy]:
    if not held.is_terminated:
        unload = f"pulsar-admin topics unload {held.quoted_topic}"
        return [
            Remedy(
                "unload the topic, so that its broker opens a new ledger, and trim it; clients reconnect",
                held.then_trimmed(unload),
            )
        ]
    if held.topic.partition_index is not None:
        whole = f"pulsar-sidecar topics delete --partitioned {held.quoted_base}"
        return [Remedy("delete the topic with all its partitions once their messages are consumed", whole)]
    return [
        Remedy("delete the topic once its messages are consumed", f"pulsar-sidecar topics delete {held.quoted_topic}")
    ]


def _trim(held: Held) -> list[Remedy]:
    return [Remedy("trim the topic now" if held.is_loaded else "load the topic, and trim it", held.trimmed)]


def _offload_lag(held: Held) -> list[Remedy]:
    lag = f"pulsar-admin namespaces set-offload-deletion-lag --lag 0s {quoted(held.topic.namespace)}"
    what = "shorten the deletion lag: brokers then read offloaded ledgers from tiered storage"
    return [Remedy(what, held.then_trimmed(lag))]


def _replaced_copy(held: Held) -> list[Remedy]:
    command = f"pulsar-sidecar topics delete-ledger {held.quoted_topic}{held.component}"
    return [
        Remedy("let the sidecar read the copy in tiered storage, and delete BookKeeper's if that is whole", command)
    ]


def _compacted_ledger(held: Held) -> list[Remedy]:
    drop = f"pulsar-admin topics unsubscribe -s __compaction {held.quoted_topic}"
    return [Remedy("drop the compacted view; the next compaction recreates it", drop)]


def _cursor_ledger(held: Held) -> list[Remedy]:
    unload = f"pulsar-admin topics unload {held.quoted_topic}"
    return [
        Remedy(
            "unload the topic: its broker stores the cursor in the metadata store, if it fits; clients reconnect",
            unload,
        )
    ]


def _schema(held: Held) -> list[Remedy]:
    delete = f"pulsar-admin schemas delete --force {held.quoted_base}"
    return [Remedy("delete all versions of the schema if no client needs them", delete)]


def _unreferenced(held: Held) -> list[Remedy]:
    command = f"pulsar-sidecar topics delete-ledger {held.quoted_topic}{held.component}"
    return [Remedy("let the sidecar verify the ledger, and delete it if nothing references it", command)]


def _again(held: Held) -> list[Remedy]:
    return [Remedy("retry", f"pulsar-sidecar pins topic {held.quoted_topic}")]


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
    PinCause.REPLACED_COPY: _replaced_copy,
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
        Remedy("start the bookie; garbage collection needs it running"),
        Remedy(
            "if its disks are lost, decommission it: the other bookies re-replicate its ledgers",
            f"bookkeeper shell decommissionbookie -bookieid {quoted(bookie)}",
        ),
    )


def collecting(figures: BookieFigures) -> tuple[Remedy, ...]:
    """Return the remedies that remove deleted bytes from a bookie's disks."""
    gc = f"{figures.http_url}/api/v1/bookie/gc"
    return (
        _resuming(gc) if figures.minor.is_suspended or figures.major.is_suspended else Remedy(_waiting(figures)),
        Remedy(
            "trigger garbage collection and compaction now (uses disk bandwidth)",
            _put({"forceMajor": True, "forceMinor": True}, gc),
        ),
    )


def _resuming(gc: str) -> Remedy:
    return Remedy(
        "resume compaction, which an operator suspended, or the bookie itself because its disks are too full",
        _put({"resumeMajor": True, "resumeMinor": True}, f"{gc}/resume_compaction"),
    )


def _put(body: Mapping[str, bool], url: str) -> str:
    return f"curl -X PUT -d '{json.dumps(body)}' {quoted(url)}"


def _waiting(figures: BookieFigures) -> str:
    wait = (
        f"wait: it collects garbage every {figures.gc_wait_seconds:,.0f} s, and compacts entry logs with less live data"
    )
    return f"{wait} than {figures.minor.threshold:.0%} (minor), {figures.major.threshold:.0%} (major)"
