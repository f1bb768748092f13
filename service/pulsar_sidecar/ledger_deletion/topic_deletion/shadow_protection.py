"""Refuses topic deletions that would destroy data which two topics are made of: a shadow's and its source's (PIP-180).

Stock 4.0.8 brokers delete every ledger in a managed ledger's list, and a shadow's list holds its source's ledgers. So
no deletion of a shadow is passed on, nor of a topic whose list names ledgers that hold another's entries: a shadow that
lost its property. The deletion of a source takes the data away from its shadows, so it needs the
caller's confirmation. A look-up that failed is never taken for an absence: it raises `TemporaryError`.

A shadow of a source is found if brokers list it (wherever it lies), or if it lies in the source's namespace. One that
lies elsewhere and is on no list is not found here: that would take a walk through all topics, and an audit names it.
Replicators leave no trace to look for, since 4.0.8 replicates to shadows by a cursor that is not durable.
"""

from collections.abc import Iterator, Mapping, Sequence

from pulsar_sidecar.ledger_deletion.ports import TopicAdmin
from pulsar_sidecar.ledger_deletion.topic_deletion.ledger_list import LedgerDetails, TopicReferences
from pulsar_sidecar.ledger_deletion.topic_deletion.operation import Operation
from pulsar_sidecar.ledger_ownership.paths import managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.ledger_ownership.shadows import SHADOW_SOURCE, Shadow, shadow_at
from pulsar_sidecar.model.errors import DataLossError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName, topic_of_managed_ledger

_NODES_AT_ONCE = 1_000
_MOST_NAMED = 5


class ShadowProtection:
    """Looks for shadows among what is to be deleted, and for shadows of it."""

    def __init__(self, store: MetadataStore, admin: TopicAdmin) -> None:
        self._store = store
        self._admin = admin

    def check(self, operation: Operation) -> None:
        """Raise `DataLossError` unless a broker may be asked for the operation."""
        self.refuse_shadow(operation)
        if not operation.source_data_loss_confirmed:
            self._refuse_source(operation)

    def refuse_shadow(self, operation: Operation) -> None:
        """Raise `DataLossError` if any node of the operation's topics is a shadow's; asks no broker."""
        topic = operation.topic
        paths = {*operation.node_paths, partitioned_topic_path(topic), partitioned_topic_path(topic.base)}
        shadow = next(self._shadows(sorted(paths)), None)
        if shadow is not None:
            raise shadow_refusal(topic, shadow.source)

    def _refuse_source(self, operation: Operation) -> None:
        topic = operation.topic
        sources = {topic, topic.base, *operation.topics}
        paths = {*self._neighbours(topic), *self._announced(operation)} - set(operation.node_paths)
        found = self._shadows(sorted(paths))
        shadows = sorted({str(shadow.topic.base) for shadow in found if shadow.source_topic in sources})
        if shadows:
            raise DataLossError(
                f"{topic} is the source of {_listing(shadows)}: a shadow holds no data of its own, so deleting the "
                "source destroys the shadow's data too. Delete the shadows first (pulsar-sidecar topics delete-shadow "
                f"TOPIC), or confirm the loss with confirmSourceDataLoss={topic} (--confirm-source-data-loss {topic})"
            )

    def _neighbours(self, topic: TopicName) -> Iterator[str]:
        """The managed ledgers and partitioned topics of the namespace."""
        for path in (managed_ledger_path(topic.managed_ledger_name), partitioned_topic_path(topic)):
            parent = path.rpartition("/")[0]
            yield from (f"{parent}/{name}" for name in self._store.children(parent) or ())

    def _announced(self, operation: Operation) -> Iterator[str]:
        """Where the shadows are, in whatever namespace, that brokers list."""
        for shadow in self._admin.shadow_topics(operation.topic.base):
            names = {shadow, shadow.base, *(shadow.base.partition(index) for index in range(operation.partitions or 0))}
            yield partitioned_topic_path(shadow.base)
            yield from (managed_ledger_path(name.managed_ledger_name) for name in names)

    def _shadows(self, paths: Sequence[str]) -> Iterator[Shadow]:
        for start in range(0, len(paths), _NODES_AT_ONCE):
            for node in self._store.read_many(paths[start : start + _NODES_AT_ONCE]):
                shadow = None if node is None else shadow_at(node.path, node.data)
                if shadow is not None:
                    yield shadow


def shadow_refusal(topic: TopicName, source: str) -> DataLossError:
    """Why a shadow's deletion is not passed on, and what to do instead."""
    return DataLossError(
        f"{topic} is a shadow of {source}, and brokers delete the source's ledgers together with a shadow: {source} "
        f"would lose its data. Delete the shadow alone with: pulsar-sidecar topics delete-shadow {topic.base}"
    )


def refuse_former_shadow(references: TopicReferences, details: Mapping[LedgerId, LedgerDetails]) -> None:
    """Raise `DataLossError` if the topic lists a ledger whose own metadata says that it holds another's entries.

    So a shadow looks that lost its property. A ledger that is gone or cannot be read proves nothing.
    """
    own = references.topic.managed_ledger_name
    listed = {each: details[each].entries_of for each in sorted(references.managed_ledger.ledgers) if each in details}
    foreign = {ledger_id: owner for ledger_id, owner in listed.items() if owner is not None and owner != own}
    if not foreign:
        return
    first, owner = next(iter(foreign.items()))
    source, shadow = topic_of_managed_ledger(owner) or owner, references.topic.base
    raise DataLossError(
        f"{references.topic} lists ledgers of {source} (ledger {first} and {len(foreign) - 1} more), as a shadow does "
        f"that lost its property {SHADOW_SOURCE}: brokers delete all that a topic lists, and {source} would lose its "
        "data. Make it a shadow again, as docs/shadow-topics.md shows, and delete it with: "
        f"pulsar-sidecar topics delete-shadow {shadow}"
    )


def _listing(shadows: Sequence[str]) -> str:
    more = len(shadows) - _MOST_NAMED
    named = ", ".join(shadows[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    return f"the shadow {named}" if len(shadows) == 1 else f"{len(shadows)} shadows ({named})"
