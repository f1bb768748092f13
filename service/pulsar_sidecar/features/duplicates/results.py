"""Result of a verification, as ``deduplication verify`` shows it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pulsar_sidecar.features.duplicates.findings import Finding, Producer, ProducerCounts
from pulsar_sidecar.features.duplicates.rows import FindingKind, MessageKind
from pulsar_sidecar.features.duplicates.verify import TopicResult, VerifiedTopic
from pulsar_sidecar.model.ledgers import UnseenCause
from pulsar_sidecar.model.results import result


@result
class UnseenRange:
    """Entries that were not read, or hold no message."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int | None
    """Null for the end of the ledger."""
    cause: UnseenCause
    reason: str


@result
class VerifiedProducer:
    """A producer of a partition: counts and findings."""

    producer: str
    replicated_from: str | None
    """Cluster in which it published; null for this one."""
    messages: int
    transactional: int
    first_sequence_id: int
    last_sequence_id: int
    highest_sequence_id: int
    first_publish_time_ms: int
    last_publish_time_ms: int
    duplicates: int
    reused: int
    repeated: int
    going_back: int
    epochs: int
    gaps: int
    unopened: int
    unopened_batches: int


@result
class MessageFinding:
    """Finding about one message; see `findings.Finding`."""

    finding: FindingKind
    producer: str
    replicated_from: str | None
    sequence_id: int
    position: str
    earlier_position: str | None
    highest_before: int
    publish_time_ms: int
    transactional: bool


@result
class VerifiedPartition:
    """Verification of a partition, or of a topic without partitions."""

    topic: str
    verdict: TopicResult
    entries: int
    first_position: str | None
    last_position: str | None
    rows: Mapping[str, int]
    """Number of rows by kind of message."""
    earlier_chunks: int
    not_seen: tuple[UnseenRange, ...]
    producers: tuple[VerifiedProducer, ...]
    findings: tuple[MessageFinding, ...]
    """The first findings, up to the limit."""
    findings_not_shown: int


@result
class Verification:
    """Verification of a topic."""

    topic: str
    verdict: TopicResult
    partitions: tuple[VerifiedPartition, ...]


_COUNTED: Final = (
    "messages", "transactional", "first_sequence_id", "last_sequence_id", "gaps", "unopened", "unopened_batches",
)  # fmt: skip


def describe(topic: str, verified: Sequence[VerifiedTopic], limit: int | None) -> Verification:
    """Describe all partitions, with at most ``limit`` findings of each; None for all of them."""
    return Verification(topic, _together(verified), tuple(_partition(each, limit) for each in verified))


def _together(topics: Iterable[VerifiedTopic]) -> TopicResult:
    results = {topic.result for topic in topics}
    return next((each for each in (TopicResult.FINDINGS, TopicResult.NOT_PROVEN) if each in results), TopicResult.CLEAN)


def _partition(verified: VerifiedTopic, limit: int | None) -> VerifiedPartition:
    found = Counter((each.producer, each.kind) for each in verified.findings)
    shown = verified.findings[:limit]
    producers = sorted(verified.producers.items(), key=lambda each: (each[0].name, each[0].replicated_from or ""))
    return VerifiedPartition(
        topic=str(verified.topic),
        verdict=verified.result,
        entries=verified.entries,
        first_position=None if verified.first is None else str(verified.first),
        last_position=None if verified.last is None else str(verified.last),
        rows={kind.name.lower(): verified.rows[kind] for kind in MessageKind},
        earlier_chunks=verified.earlier_chunks,
        not_seen=tuple(
            UnseenRange(each.ledger_id, each.first_entry_id, each.last_entry_id, each.cause, each.reason)
            for each in verified.unseen
        ),
        producers=tuple(_producer(producer, counts, found) for producer, counts in producers),
        findings=tuple(_finding(each) for each in shown),
        findings_not_shown=len(verified.findings) - len(shown),
    )


def _producer(
    producer: Producer, counts: ProducerCounts, found: Counter[tuple[Producer, FindingKind]]
) -> VerifiedProducer:
    return VerifiedProducer(
        producer=producer.name,
        replicated_from=producer.replicated_from,
        highest_sequence_id=counts.highest,
        first_publish_time_ms=counts.first_publish_ms,
        last_publish_time_ms=counts.last_publish_ms,
        duplicates=found[producer, FindingKind.DUPLICATE],
        reused=found[producer, FindingKind.REUSED],
        repeated=found[producer, FindingKind.REPEATED],
        going_back=found[producer, FindingKind.GOING_BACK],
        epochs=1 + found[producer, FindingKind.EPOCH],
        **{name: getattr(counts, name) for name in _COUNTED},
    )


def _finding(finding: Finding) -> MessageFinding:
    return MessageFinding(
        finding=finding.kind,
        producer=finding.producer.name,
        replicated_from=finding.producer.replicated_from,
        sequence_id=finding.sequence_id,
        position=str(finding.place),
        earlier_position=None if finding.earlier is None else str(finding.earlier),
        highest_before=finding.highest,
        publish_time_ms=finding.publish_time_ms,
        transactional=finding.message_kind is MessageKind.TRANSACTIONAL,
    )
