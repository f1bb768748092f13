"""Which shadow topics (PIP-180) stand in the way of deleting a namespace: those whose source is on its other side.

A shadow may lie in any namespace, and one that was missed loses its data: the index of all shadows is asked.
"""

from collections.abc import Sequence
from typing import Protocol

from pulsar_sidecar.ledger_deletion.topic_deletion.known_shadows import UnreadNode
from pulsar_sidecar.ledger_ownership.shadows import Shadow, source_topic
from pulsar_sidecar.model.errors import DataLossError, UndecodableError
from pulsar_sidecar.model.names import TopicName

_MOST_NAMED = 5


class AllShadows(Protocol):
    """The shadow topics of the whole cluster."""

    def all_shadows(self, *, for_deletion: bool) -> tuple[Sequence[Shadow], Sequence[UnreadNode]]:
        """Every shadow, and every node that cannot be read and may be one's, by path.

        Raises:
            TemporaryError: they are not known now.
        """


def refuse_data_loss(shadows: AllShadows, namespace: str) -> list[TopicName]:
    """The shadow topics in the namespace whose sources are in it as well, without their partitions.

    Raises:
        UndecodableError: a node that cannot be read may be the one of a shadow of a topic in it.
        DataLossError: a shadow in it has its source elsewhere (brokers would delete the source's ledgers), or one
            elsewhere has its source in it (the shadow would lose its data).
    """
    inside, of_others, of_ours = set[TopicName](), list[Shadow](), list[Shadow]()
    found, unread = shadows.all_shadows(for_deletion=True)
    for node in unread:
        if node.may_be_of_namespace(namespace):
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


def _named(shadows: list[Shadow]) -> str:
    names = sorted({f"{shadow.topic.base} is a shadow of {shadow.source}" for shadow in shadows})
    more = len(names) - _MOST_NAMED
    return "; ".join(names[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
