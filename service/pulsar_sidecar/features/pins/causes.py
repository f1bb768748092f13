"""Remedies of each cause, with the commands that an operator types.

Only a broker that has loaded a topic trims it, so a command that does not load the topic is followed by one that does.
"""

import json
from collections.abc import Callable, Mapping, Sequence
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


def remedies(cause: PinCause, held: Held) -> tuple[Remedy, ...]:
    """Return the remedies of a cause, least disruptive first."""
    found = _CONDITIONAL[cause](held) if cause in _CONDITIONAL else _ALWAYS.get(cause, ())
    topic = quoted(str(held.topic))
    words = {
        "topic": topic,
        "base": quoted(str(held.topic.base)),
        "namespace": quoted(held.topic.namespace),
        "subscription": quoted(held.holder),
        "others": quoted(_others(held)),
        "component": held.component,
        "trim": f"pulsar-admin topics trim-topic {topic}",
    }
    return tuple(Remedy(one.what, one.command and one.command.format_map(words)) for one in found)


def _replication(held: Held) -> Sequence[Remedy]:
    cluster = remote_cluster(held.holder) or ""
    if held.replicated_to and cluster not in held.replicated_to:
        command = "pulsar-admin topics unload {topic} && {trim}" if held.is_loaded else "{trim}"
        return [Remedy("load the topic, so that its broker drops the cursor, and trim it", command)]
    kept = [
        _reaching(cluster, held),
        Remedy(
            "skip the backlog: these messages are not replicated",
            "pulsar-admin topics clear-backlog -s {subscription} {topic}",
        ),
    ]
    stop = Remedy(
        "stop replicating the topic to this cluster: pending messages are not replicated",
        "pulsar-admin topics set-replication-clusters -c {others} {base} && {trim}",
    )
    return [*kept, stop] if _others(held) else kept


def _others(held: Held) -> str:
    return ",".join(sorted(held.replicated_to - {remote_cluster(held.holder)}))


def _reaching(cluster: str, held: Held) -> Remedy:
    if not held.is_loaded:
        return Remedy("load the topic, and keep it loaded: only such a topic is replicated", "{trim}")
    if held.replicators.get(cluster):
        return Remedy("wait while the backlog shrinks; if it does not, the log of the topic's broker has the reason")
    return Remedy(
        f"make the cluster {cluster} reachable, and make sure that the topic can be created there: the log of the "
        "topic's broker has the reason why it is not connected"
    )


def _deduplication(held: Held) -> Sequence[Remedy]:
    next_one = Remedy("wait: its broker takes a snapshot every brokerDeduplicationSnapshotIntervalSeconds")
    load = Remedy(
        "load the topic, and keep it loaded for some minutes, until its broker has taken a snapshot and trimmed",
        "{trim}",
    )
    return [
        next_one if held.is_loaded else load,
        Remedy("show why no newer snapshot was taken", "pulsar-sidecar deduplication show {topic}"),
        Remedy(
            "disable deduplication: brokers drop their producers' sequence ids",
            "pulsar-admin topicPolicies set-deduplication --disable {base} && {trim}",
        ),
    ]


def _last_ledger(held: Held) -> Sequence[Remedy]:
    if not held.is_terminated:
        what = "unload the topic, so that its broker opens a new ledger, and trim it; clients reconnect"
        return [Remedy(what, "pulsar-admin topics unload {topic} && {trim}")]
    if held.topic.partition_index is not None:
        what = "delete the topic with all its partitions once their messages are consumed"
        return [Remedy(what, "pulsar-sidecar topics delete --partitioned {base}")]
    return [Remedy("delete the topic once its messages are consumed", "pulsar-sidecar topics delete {topic}")]


def _trim(held: Held) -> Sequence[Remedy]:
    return [Remedy("trim the topic now" if held.is_loaded else "load the topic, and trim it", "{trim}")]


_CONDITIONAL: Final[Mapping[PinCause, Callable[[Held], Sequence[Remedy]]]] = {
    PinCause.REPLICATION: _replication,
    PinCause.DEDUPLICATION_SNAPSHOT: _deduplication,
    PinCause.LAST_LEDGER: _last_ledger,
    PinCause.NOT_LOADED: _trim,
    PinCause.NEXT_TRIM: _trim,
}
"""Remedies that depend on the facts; words in braces in their commands are those of `remedies`."""
_SUBSCRIPTION: Final = (
    Remedy(
        "skip the backlog: the subscription never receives it",
        "pulsar-admin topics clear-backlog -s {subscription} {topic}",
    ),
    Remedy(
        "delete the subscription if no consumer needs it", "pulsar-admin topics unsubscribe -s {subscription} {topic}"
    ),
)
_DELAYED: Final = (
    Remedy("wait until the messages are due, with consumers connected"),
    Remedy(
        "cancel delayed messages, after a preview",
        "pulsar-sidecar topics cancel-delayed-messages {topic} -s {subscription} --due-from 0",
    ),
    *_SUBSCRIPTION,
)
_AGAIN: Final = (Remedy("retry", "pulsar-sidecar pins topic {topic}"),)
_ALWAYS: Final[Mapping[PinCause, Sequence[Remedy]]] = {
    PinCause.BACKLOG: (Remedy("start its consumers, so that they acknowledge the backlog"), *_SUBSCRIPTION),
    PinCause.ACKNOWLEDGEMENT_HOLES: (
        Remedy(
            "list the unacknowledged ranges, and acknowledge them with a consumer",
            "pulsar-sidecar subscriptions ack-state {topic} -s {subscription}",
        ),
        *_SUBSCRIPTION,
    ),
    PinCause.DELAYED_MESSAGES: _DELAYED,
    PinCause.DELAYED_INDEX: _DELAYED,
    PinCause.COMPACTION: (Remedy("compact the topic", "pulsar-admin topics compact {topic}"),),
    PinCause.RETENTION: (
        Remedy(
            "reduce retention: acknowledged messages can then no longer be read",
            "pulsar-admin topicPolicies set-retention --time 0 --size 0 {base} && {trim}",
        ),
    ),
    PinCause.OFFLOAD_LAG: (
        Remedy(
            "shorten the deletion lag: brokers then read offloaded ledgers from tiered storage",
            "pulsar-admin namespaces set-offload-deletion-lag --lag 0s {namespace} && {trim}",
        ),
    ),
    PinCause.REPLACED_COPY: (
        Remedy(
            "let the sidecar read the copy in tiered storage, and delete BookKeeper's if the copy is complete",
            "pulsar-sidecar topics delete-ledger {topic}{component}",
        ),
    ),
    PinCause.COMPACTED_LEDGER: (
        Remedy(
            "drop the compacted view; the next compaction recreates it",
            "pulsar-admin topics unsubscribe -s __compaction {topic}",
        ),
    ),
    PinCause.CURSOR_LEDGER: (
        Remedy(
            "unload the topic: its broker stores the cursor in the metadata store, if it fits; clients reconnect",
            "pulsar-admin topics unload {topic}",
        ),
    ),
    PinCause.SCHEMA: (
        Remedy(
            "delete all versions of the schema if no client needs them", "pulsar-admin schemas delete --force {base}"
        ),
    ),
    PinCause.UNREFERENCED: (
        Remedy(
            "let the sidecar verify the ledger, and delete it if nothing references it",
            "pulsar-sidecar topics delete-ledger {topic}{component}",
        ),
    ),
    PinCause.UNREADABLE_CURSOR: _AGAIN,
    PinCause.UNREADABLE_LENGTH: _AGAIN,
    PinCause.UNREADABLE_METADATA: _AGAIN,
    PinCause.UNREADABLE_RETENTION: _AGAIN,
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
