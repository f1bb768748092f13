"""Refusals of deletions that would destroy data shared by a shadow and its source (PIP-180).

Stock 4.0.8 brokers delete every ledger in a managed ledger's list, and a shadow's list has its source's ledgers. So the
sidecar passes on no deletion of a shadow; the deletion of a source destroys its shadows' data and needs the caller's
confirmation.

`Shadows` knows the nodes of all topics, so brokers' lists of a source's shadows (``shadowTopics``) are not used: a
shadow that no broker lists still maps the source's ledgers. A partitioned shadow without partitions is refused too,
since a client may create them at any moment.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from pulsar_sidecar.features.ledger_deletion.topic_deletion.known_shadows import UnreadNode
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import Operation
from pulsar_sidecar.features.ledger_deletion.topic_deletion.recorder import shadow_refusal
from pulsar_sidecar.model.errors import DataLossError, UndecodableError
from pulsar_sidecar.model.metadata import Nodes
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import partitioned_topic_path
from pulsar_sidecar.ownership.shadows import Shadow, shadow_at, source_topic
from pulsar_sidecar.reports.formatting import format_count

_MOST_NAMED = 5


class Shadows(Protocol):
    """Shadow topics of the whole cluster."""

    def shadows_of(self, sources: Collection[TopicName]) -> Sequence[Shadow]:
        """Return the shadows of these topics in any namespace, as of a moment after the call began.

        Raises:
            UndecodableError: an unreadable node may be that of one of their shadows.
            TemporaryError: the shadows are unknown now.
        """

    def all_shadows(self, *, for_deletion: bool = False) -> tuple[Sequence[Shadow], Sequence[UnreadNode]]:
        """Return every shadow, and every unreadable node that may be one's, by path; raises `TemporaryError`.

        A deletion does not wait for as long as other callers do.
        """


def refuse_data_loss(shadows: Shadows, operation: Operation) -> None:
    """Raise `DataLossError` where shadows would lose their data; other errors mean that this is unknown."""
    if operation.source_data_loss_confirmed:
        return
    topic = operation.topic
    confirm = f"confirmSourceDataLoss={topic} (--confirm-source-data-loss {topic})"
    try:
        found = shadows.shadows_of({topic, topic.base, *operation.topics})
    except UndecodableError as error:
        raise UndecodableError(
            f"{error}. Repair that node, or confirm with {confirm} that shadows of {topic} may lose their data"
        ) from error
    names = sorted({str(each.topic.base) for each in found})
    if names:
        named = _first(names, ", ", " and ")
        listing = f"the shadow {named}" if len(names) == 1 else f"{format_count(len(names), 'shadow')} ({named})"
        raise DataLossError(
            f"{topic} is the source of {listing}: a shadow holds no data of its own, so deleting the "
            "source destroys the shadow's data too. Delete the shadows first (pulsar-sidecar topics delete-shadow "
            f"TOPIC), or confirm the loss with {confirm}"
        )


def refuse_shadow(nodes: Nodes, operation: Operation) -> None:
    """Raise `DataLossError` if any node of the operation's topics, as one read found them, is a shadow's.

    Reads the nodes although `Shadows` knows them: a shadow's deletion destroys its source's data silently.
    """
    topic = operation.topic
    for path in sorted({*operation.node_paths, partitioned_topic_path(topic), partitioned_topic_path(topic.base)}):
        node = nodes[path]
        shadow = None if node is None else shadow_at(path, node.data)
        if shadow is not None:
            raise shadow_refusal(topic, shadow.source)


def refuse_namespace_data_loss(shadows: Shadows, namespace: str) -> list[TopicName]:
    """Return the shadow topics in the namespace whose sources are in it too, without their partitions.

    Raises:
        UndecodableError: an unreadable node may be the one of a shadow of a topic in it.
        DataLossError: a shadow in it has its source elsewhere (brokers would delete the source's ledgers), or one
            elsewhere has its source in it (the shadow would lose its data).
    """
    inside, of_others, of_ours = set[TopicName](), list[Shadow](), list[Shadow]()
    found, unread = shadows.all_shadows(for_deletion=True)
    for node in unread:
        if node.may_belong_to_namespace(namespace):
            raise UndecodableError(node.reason)
    for shadow in found:
        source = source_topic(shadow.source)
        is_inside = shadow.topic.namespace == namespace
        if is_inside and source is not None and source.namespace == namespace:
            inside.add(shadow.topic.base)
        elif is_inside:
            of_others.append(shadow)
        elif source is not None and source.namespace == namespace:
            of_ours.append(shadow)
    if of_others:
        raise DataLossError(
            f"{_named(of_others)} in {namespace}: brokers delete the ledgers of a source together with its shadow. "
            f"Delete the shadows first, with: pulsar-sidecar topics delete-shadow {of_others[0].topic.base}"
        )
    if of_ours:
        raise DataLossError(
            f"sources in {namespace} have shadows elsewhere, which would lose their data: {_named(of_ours)}. "
            f"Delete the shadows first, with: pulsar-sidecar topics delete-shadow {of_ours[0].topic.base}"
        )
    return sorted(inside, key=str)


def _named(shadows: Iterable[Shadow]) -> str:
    names = sorted({f"{shadow.topic.base} is a shadow of {shadow.source}" for shadow in shadows})
    return _first(names, "; ", "; and ")


def _first(names: Sequence[str], separator: str, last: str) -> str:
    more = len(names) - _MOST_NAMED
    return separator.join(names[:_MOST_NAMED]) + (f"{last}{more} more" if more > 0 else "")
