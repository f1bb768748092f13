"""Refuses deletions that would destroy data which two topics are made of, a shadow's and its source's (PIP-180).

Stock 4.0.8 brokers delete every ledger in a managed ledger's list, and a shadow's list holds its source's ledgers. So
no deletion of a shadow is passed on; the deletion of a source takes the data away from its shadows and needs the
caller's confirmation.

Brokers are not asked which shadows they replicate a source to (``shadowTopics``): `Shadows` knows the nodes of all
topics. A name on that list without a node holds no data; one whose node does not name the source is no shadow of it.
The other way round a shadow that no broker lists maps the source's ledgers all the same. A partitioned shadow whose
partitions have not been created yet would lose nothing; it is refused as well, since a client may create them at any
moment.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.ledger_deletion.topic_deletion.operation import Nodes, Operation
from pulsar_sidecar.ledger_deletion.topic_deletion.recorder import shadow_refusal
from pulsar_sidecar.ledger_ownership.paths import partitioned_topic_path
from pulsar_sidecar.ledger_ownership.shadows import Shadow, shadow_at
from pulsar_sidecar.model.errors import DataLossError, UndecodableError
from pulsar_sidecar.model.names import TopicName

_MOST_NAMED = 5


class Shadows(Protocol):
    """The shadow topics of the whole cluster."""

    def shadows_of(self, sources: Collection[TopicName]) -> Sequence[Shadow]:
        """The shadows of these topics in whatever namespace, as they are at a moment after the call began.

        Raises:
            UndecodableError: a node that cannot be read may be the one of a shadow of theirs.
            TemporaryError: it is not known now.
        """


def refuse_data_loss(shadows: Shadows, operation: Operation) -> None:
    """Raise `DataLossError` where shadows would lose their data; other errors mean that it is not known."""
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
        more = len(names) - _MOST_NAMED
        named = ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        listing = f"the shadow {named}" if len(names) == 1 else f"{format_count(len(names), 'shadow')} ({named})"
        raise DataLossError(
            f"{topic} is the source of {listing}: a shadow holds no data of its own, so deleting the "
            "source destroys the shadow's data too. Delete the shadows first (pulsar-sidecar topics delete-shadow "
            f"TOPIC), or confirm the loss with {confirm}"
        )


def refuse_shadow(nodes: Nodes, operation: Operation) -> None:
    """Raise `DataLossError` if any node of the operation's topics, as a look found them, is a shadow's.

    The nodes are read, although `Shadows` knows them: a shadow's deletion destroys its source's data without a word.
    """
    topic = operation.topic
    for path in sorted({*operation.node_paths, partitioned_topic_path(topic), partitioned_topic_path(topic.base)}):
        node = nodes[path]
        shadow = None if node is None else shadow_at(path, node.data)
        if shadow is not None:
            raise shadow_refusal(topic, shadow.source)
