"""What was verified, as a JSON document."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from pulsar_sidecar.deduplication.verifying.findings import Finding, Producer, ProducerCounts
from pulsar_sidecar.deduplication.verifying.rows import FindingKind, MessageKind
from pulsar_sidecar.deduplication.verifying.verify import TopicResult, VerifiedTopic
from pulsar_sidecar.model.ledgers import UnseenEntries


def result_of(topics: Iterable[VerifiedTopic]) -> TopicResult:
    """Of all partitions together."""
    results = {topic.result for topic in topics}
    return next((each for each in (TopicResult.FINDINGS, TopicResult.NOT_PROVEN) if each in results), TopicResult.CLEAN)


def describe(topic: str, verified: Sequence[VerifiedTopic], limit: int | None) -> dict[str, Any]:
    """All of it, with at most ``limit`` findings of each partition; None for all of them."""
    return {
        "topic": topic,
        "verdict": result_of(verified).value,
        "partitions": [_partition(each, limit) for each in verified],
    }


def _partition(verified: VerifiedTopic, limit: int | None) -> dict[str, Any]:
    found = Counter((each.producer, each.kind) for each in verified.findings)
    shown = verified.findings[:limit]
    return {
        "topic": str(verified.topic),
        "verdict": verified.result.value,
        "entries": verified.entries,
        "firstPosition": None if verified.first is None else str(verified.first),
        "lastPosition": None if verified.last is None else str(verified.last),
        "rows": {kind.name.lower(): verified.rows[kind] for kind in MessageKind},
        "earlierChunks": verified.earlier_chunks,
        "notSeen": [_unseen(each) for each in verified.unseen],
        "producers": [
            _producer(producer, verified.producers[producer], found)
            for producer in sorted(verified.producers, key=lambda each: (each.name, each.replicated_from or ""))
        ],
        "findings": [_finding(each) for each in shown],
        "findingsNotShown": len(verified.findings) - len(shown),
    }


def _unseen(unseen: UnseenEntries) -> dict[str, Any]:
    return {
        "ledgerId": unseen.ledger_id,
        "firstEntryId": unseen.first_entry_id,
        "lastEntryId": unseen.last_entry_id,
        "cause": unseen.cause.value,
        "reason": unseen.reason,
    }


def _producer(
    producer: Producer, counts: ProducerCounts, found: Counter[tuple[Producer, FindingKind]]
) -> dict[str, Any]:
    return {
        "producer": producer.name,
        "replicatedFrom": producer.replicated_from,
        "messages": counts.messages,
        "transactional": counts.transactional,
        "firstSequenceId": counts.first_sequence_id,
        "lastSequenceId": counts.last_sequence_id,
        "highestSequenceId": counts.highest,
        "firstPublishTimeMs": counts.first_publish_ms,
        "lastPublishTimeMs": counts.last_publish_ms,
        "duplicates": found[producer, FindingKind.DUPLICATE],
        "reused": found[producer, FindingKind.REUSED],
        "repeated": found[producer, FindingKind.REPEATED],
        "goingBack": found[producer, FindingKind.GOING_BACK],
        "epochs": 1 + found[producer, FindingKind.EPOCH],
        "gaps": counts.gaps,
        "unopened": counts.unopened,
        "unopenedBatches": counts.unopened_batches,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "finding": finding.kind.value,
        "producer": finding.producer.name,
        "replicatedFrom": finding.producer.replicated_from,
        "sequenceId": finding.sequence_id,
        "position": str(finding.place),
        "earlierPosition": None if finding.earlier is None else str(finding.earlier),
        "highestBefore": finding.highest,
        "publishTimeMs": finding.publish_time_ms,
        "transactional": finding.message_kind is MessageKind.TRANSACTIONAL,
    }
