"""What verification needs from outside."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from pulsar_sidecar.deduplication.verifying.rows import MessageRow
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.ledgers import UnseenEntries
from pulsar_sidecar.model.names import TopicName


class TopicMessages(Protocol):
    """Messages as they are stored."""

    def read(self, topic: TopicName, last: Position | None = None) -> Iterator[Sequence[MessageRow] | UnseenEntries]:
        """Every entry in the order of the log, up to ``last``: its rows, at least one, or that it was not seen.

        Args:
            topic: a partition, or a topic without partitions.
            last: where to end, included; None for the end of what is stored.

        Raises:
            NotFoundError: there is no such topic.
            TemporaryError: the metadata store could not be asked.
        """
        ...
