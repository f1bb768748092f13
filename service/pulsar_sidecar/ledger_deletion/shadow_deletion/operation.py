"""One deletion of a shadow topic, kept in the metadata store from before its first change until its report is old.

The node remembers what the cluster's own nodes stop saying on the way: which sources the shadow had, whose ledgers have
to be there at the end, and which incarnations of its nodes are meant.
"""

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from pulsar_sidecar.ledger_deletion.deletion_node import DeletionNode
from pulsar_sidecar.ledger_deletion.service import ShadowDeletionStage, ShadowDeletionStatus, SourceCheck
from pulsar_sidecar.ledger_ownership.shadows import source_topic
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName, java_url_encode, parse_topic_name

SHADOW_DELETIONS = "/pulsar-sidecar/ledger-deletion/shadow-deletions"


def shadow_deletion_path(topic: TopicName) -> str:
    """The node of the topic's deletion: one for each name, so that a repeated call finds it."""
    return f"{SHADOW_DELETIONS}/{java_url_encode(str(topic))}"


class ShadowDeletion(DeletionNode, frozen=True, kw_only=True, rename="camel"):
    """One deletion of a shadow topic.

    Attributes:
        source: as the shadow's property spelled it.
        source_names: the topics whose ledgers the shadow lists: each partition's own, if it has partitions.
        incarnations: creation order of each of the shadow's nodes, by path, when it was asked for: a topic deleted and
            created again is another one and is left alone.
        checked_ledgers: with the two below, the last `SourceCheck`: before the first change, or at the end.
        missing_before: ledgers of the sources that were missing before the first change.
    """

    source: str
    source_names: tuple[str, ...] = msgspec.field(name="sources")
    incarnations: Mapping[str, int]
    requested_by: str | None
    requested_ms: int
    checked_ledgers: int
    missing_ledgers: tuple[LedgerId, ...]
    missing_sources: tuple[str, ...]
    missing_before: tuple[LedgerId, ...]
    stage: ShadowDeletionStage

    def __post_init__(self) -> None:
        for name in (self.topic_name, *self.source_names, *self.missing_sources):
            parse_topic_name(name)

    @property
    def sources(self) -> tuple[TopicName, ...]:
        """The topics whose ledgers the shadow lists."""
        return tuple(parse_topic_name(name) for name in self.source_names)

    @property
    def no_source(self) -> str:
        """The name of a topic that does not exist, which takes the source's place."""
        return f"persistent://{self.topic.namespace}/pulsar-sidecar-no-source-{self.operation_id}"

    def with_partitions(self, partitions: int) -> "ShadowDeletion":
        """With partitions that were added since it was begun, and their sources."""
        if self.partitions is None or partitions <= self.partitions:
            return self
        base = source_topic(self.source)
        added = [] if base is None else [str(base.partition(index)) for index in range(self.partitions, partitions)]
        return replace(self, partitions=partitions, source_names=tuple(dict.fromkeys([*self.source_names, *added])))

    def at(self, stage: ShadowDeletionStage) -> "ShadowDeletion":
        """At a later stage."""
        return replace(self, stage=stage)

    def checked(self, check: SourceCheck) -> "ShadowDeletion":
        """With what was found of the sources' ledgers."""
        return replace(
            self,
            checked_ledgers=check.ledgers,
            missing_ledgers=check.missing,
            missing_sources=tuple(str(source) for source in check.missing_sources),
        )

    def status(self, waits_for: str | None = None) -> ShadowDeletionStatus:
        """As an operator sees it."""
        missing_sources = tuple(parse_topic_name(name) for name in self.missing_sources)
        return ShadowDeletionStatus(
            operation_id=self.operation_id,
            topic=self.topic,
            source=self.source,
            stage=self.stage,
            requested_ms=self.requested_ms,
            source_check=SourceCheck(self.checked_ledgers, self.missing_ledgers, missing_sources),
            missing_before=self.missing_before,
            waits_for=waits_for,
        )
