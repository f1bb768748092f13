"""One deletion of a shadow topic, kept in the metadata store from before its first change until its report is old.

The node remembers what the cluster's own nodes stop saying on the way: which sources the shadow had, whose ledgers have
to be there at the end, and which incarnations of its nodes are meant.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pulsar_sidecar.ledger_deletion.service import ShadowDeletionStage, ShadowDeletionStatus, SourceCheck
from pulsar_sidecar.ledger_ownership.paths import managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.ledger_ownership.shadows import source_topic
from pulsar_sidecar.model.errors import InvalidInputError, UndecodableError
from pulsar_sidecar.model.ids import LedgerId, NodeVersion, OperationId
from pulsar_sidecar.model.names import TopicName, java_url_encode, parse_topic_name

SHADOW_DELETIONS = "/pulsar-sidecar/ledger-deletion/shadow-deletions"


def shadow_deletion_path(topic: TopicName) -> str:
    """The node of the topic's deletion: one for each name, so that a repeated call finds it."""
    return f"{SHADOW_DELETIONS}/{java_url_encode(str(topic))}"


@dataclass(frozen=True, slots=True)
class ShadowDeletion:
    """One deletion of a shadow topic.

    Attributes:
        partitions: None for a topic that is not partitioned.
        source: as the shadow's property spelled it.
        sources: the topics whose ledgers the shadow lists: each partition's own, if it has partitions.
        incarnations: creation order of each of the shadow's nodes, by path, when it was asked for: a topic deleted and
            created again is another one and is left alone.
        check: what the sources' lists and BookKeeper said last: before the first change, or at the end.
        missing_before: ledgers of the sources that were missing before the first change.
    """

    operation_id: OperationId
    topic: TopicName
    partitions: int | None
    source: str
    sources: tuple[TopicName, ...]
    incarnations: Mapping[str, int]
    requested_by: str | None
    requested_ms: int
    check: SourceCheck
    missing_before: tuple[LedgerId, ...]
    stage: ShadowDeletionStage = ShadowDeletionStage.PROTECTING

    @property
    def partitioned(self) -> bool:
        """Whether its source stands in the partitioned topic's node."""
        return self.partitions is not None

    @property
    def shadows(self) -> tuple[TopicName, ...]:
        """The topics with a managed ledger of their own."""
        return shadows_of(self.topic, self.partitions)

    @property
    def no_source(self) -> str:
        """The name of a topic that does not exist, which takes the source's place."""
        return f"persistent://{self.topic.namespace}/pulsar-sidecar-no-source-{self.operation_id}"

    def with_partitions(self, partitions: int) -> "ShadowDeletion":
        """With partitions that were added since it was begun, and their sources."""
        if self.partitions is None or partitions <= self.partitions:
            return self
        base = source_topic(self.source)
        added = range(self.partitions, partitions)
        sources = [] if base is None else [base.partition(index) for index in added]
        return replace(self, partitions=partitions, sources=tuple(dict.fromkeys([*self.sources, *sources])))

    def at(self, stage: ShadowDeletionStage) -> "ShadowDeletion":
        """At a later stage."""
        return replace(self, stage=stage)

    def checked(self, check: SourceCheck) -> "ShadowDeletion":
        """Done, and what came out."""
        return replace(self, check=check, stage=ShadowDeletionStage.DONE)

    def status(self, waits_for: str | None = None) -> ShadowDeletionStatus:
        """As an operator sees it."""
        return ShadowDeletionStatus(
            operation_id=self.operation_id,
            topic=self.topic,
            source=self.source,
            stage=self.stage,
            requested_ms=self.requested_ms,
            source_check=self.check,
            missing_before=self.missing_before,
            waits_for=waits_for,
        )


@dataclass(frozen=True, slots=True)
class HeldShadowDeletion:
    """A deletion and the version of its node, for compare-and-set."""

    deletion: ShadowDeletion
    version: NodeVersion


def shadows_of(topic: TopicName, partitions: int | None) -> tuple[TopicName, ...]:
    """The topics with a managed ledger of their own."""
    return (topic,) if partitions is None else tuple(topic.partition(index) for index in range(partitions))


def node_paths(topic: TopicName, partitions: int | None) -> tuple[str, ...]:
    """The nodes that make up a shadow: its managed ledgers and, if it has partitions, their number."""
    ledgers = tuple(managed_ledger_path(shadow.managed_ledger_name) for shadow in shadows_of(topic, partitions))
    return ledgers if partitions is None else (*ledgers, partitioned_topic_path(topic))


def encode_shadow_deletion(deletion: ShadowDeletion) -> bytes:
    """The node's bytes."""
    document = {
        "operationId": deletion.operation_id,
        "topicName": str(deletion.topic),
        "partitions": deletion.partitions,
        "source": deletion.source,
        "sources": [str(source) for source in deletion.sources],
        "incarnations": dict(deletion.incarnations),
        "requestedBy": deletion.requested_by,
        "requestedMs": deletion.requested_ms,
        "checkedLedgers": deletion.check.ledgers,
        "missingLedgers": list(deletion.check.missing),
        "missingSources": [str(source) for source in deletion.check.missing_sources],
        "missingBefore": list(deletion.missing_before),
        "stage": deletion.stage.value,
    }
    return json.dumps(document, separators=(",", ":")).encode()


def decode_shadow_deletion(data: bytes) -> ShadowDeletion:
    """Read the node.

    Raises:
        UndecodableError: another version wrote it; it is left alone.
    """
    try:
        return _decoded(json.loads(data))
    except (ValueError, KeyError, TypeError, RecursionError, InvalidInputError) as error:
        raise UndecodableError(
            f"the node of a shadow topic's deletion cannot be read ({type(error).__name__}); go on with the version of "
            "pulsar-sidecar that began it"
        ) from error


def _decoded(document: Mapping[str, Any]) -> ShadowDeletion:
    partitions = document["partitions"]
    return ShadowDeletion(
        operation_id=OperationId(_text(document["operationId"])),
        topic=parse_topic_name(_text(document["topicName"])),
        partitions=None if partitions is None else _number(partitions),
        source=_text(document["source"]),
        sources=_topics(document["sources"]),
        incarnations=_orders(document["incarnations"]),
        requested_by=None if document["requestedBy"] is None else _text(document["requestedBy"]),
        requested_ms=_number(document["requestedMs"]),
        check=SourceCheck(
            _number(document["checkedLedgers"]),
            _ledger_ids(document["missingLedgers"]),
            _topics(document["missingSources"]),
        ),
        missing_before=_ledger_ids(document["missingBefore"]),
        stage=ShadowDeletionStage(document["stage"]),
    )


def _orders(found: object) -> dict[str, int]:
    if not isinstance(found, dict):
        raise TypeError("an object was expected")
    return {_text(path): _number(order) for path, order in found.items()}


def _topics(names: list[object]) -> tuple[TopicName, ...]:
    return tuple(parse_topic_name(_text(name)) for name in names)


def _ledger_ids(numbers: list[object]) -> tuple[LedgerId, ...]:
    return tuple(LedgerId(_number(number)) for number in numbers)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("text was expected")
    return value


def _number(value: object) -> int:
    if type(value) is not int:
        raise TypeError("a number was expected")
    return value
