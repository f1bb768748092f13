"""The summary of what was found, ``summary.json`` beside its tables, and what follows from it.

Invariant: a summary is written last, and only of an extract that was looked through whole; a topic of which something
was not seen is never clean.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from pulsar_sidecar.analysis.documents import EXIT_CLEAN, EXIT_ERROR, EXIT_FINDINGS, Document, Engine, Limitation
from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.deduplication.verifying.duplicates.requests import DuplicatesOutcome
from pulsar_sidecar.deduplication.verifying.manifests import UnseenCount
from pulsar_sidecar.deduplication.verifying.verify import TopicResult
from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.ledgers import UnseenCause

KIND: Final = "message-duplicates"
FORMAT_VERSION: Final = 1

_CONSEQUENCE: Final = "whether these messages repeat others, or others these, is not known"
_LOWEST_ID_ALONE: Final = "of each the lowest id was compared alone; its other messages may repeat others"
_TRIMMED: Final = "the topics hold them no more; what repeats one of them is reported as rising or as going back"


_EXIT_CODES: Final = {
    TopicResult.CLEAN: EXIT_CLEAN,
    TopicResult.FINDINGS: EXIT_FINDINGS,
    TopicResult.NOT_PROVEN: EXIT_ERROR,
}


@decodable
class DuplicateCounts(Document, frozen=True, kw_only=True):
    """What was counted over all topics.

    Attributes:
        topics_with_findings: and ``topics_not_proven``: some are both.
        unopened_batches: those whose messages' ids are not known.
        messages: rows that were judged; ``markers`` and earlier chunks are not.
        findings: by `FindingKind`.
    """

    topics_with_findings: int
    topics_not_proven: int
    unopened_batches: int
    rows: int
    markers: int
    messages: int
    producers: int
    gaps: int
    findings: Mapping[str, int]


@decodable
class DuplicatesSummary(DuplicateCounts, frozen=True, kw_only=True):
    """Everything about the findings that is not a row of a table.

    Attributes:
        extract_sha256: digest of the extract's manifest.
        scope: what the extract was made of.
        source: where it was read.
        extract_times: when the extract was begun and ended, milliseconds since the epoch.
        topics: of the extract, also those without messages.
        files: relative path to SHA-256.
    """

    engine: Engine
    tool_version: str
    extract_sha256: str
    scope: str
    source: str
    instance_id: str
    extract_times: tuple[int, int]
    topics: int
    unseen: tuple[Limitation, ...]
    files: Mapping[str, str]

    @property
    def result(self) -> TopicResult:
        """What it comes to."""
        if any(self.findings.values()):
            return TopicResult.FINDINGS
        return TopicResult.NOT_PROVEN if self.topics_not_proven else TopicResult.CLEAN

    @property
    def exit_code(self) -> int:
        """How a program ends that found this."""
        return _EXIT_CODES[self.result]

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        counted = msgspec.json.decode(msgspec.json.encode(self, order="deterministic"))
        beginning = {"kind": KIND, "formatVersion": FORMAT_VERSION, "complete": True, "verdict": self.result.value}
        return {**beginning, **counted}


def unseen_parts(counts: Mapping[str, UnseenCount], unopened_batches: int) -> tuple[Limitation, ...]:
    """What was not seen, by the cause, and what of the rest could not be looked into."""
    unopened = Limitation("batches whose messages' ids are not known", unopened_batches, _LOWEST_ID_ALONE)
    unseen = tuple(
        Limitation(_what(cause, count), count.entries, _TRIMMED if cause == UnseenCause.TRIMMED.value else _CONSEQUENCE)
        for cause, count in sorted(counts.items())
        if count.ranges
    )
    return (*unseen, unopened) if unopened_batches else unseen


def _what(cause: str, count: UnseenCount) -> str:
    unbounded = f", {count.unbounded:,} of them without a known end" if count.unbounded else ""
    return f"entries in {format_count(count.ranges, 'range')} ({cause}){unbounded}"


def conclude(summary: DuplicatesSummary, place: str) -> DuplicatesOutcome:
    """What it comes to, and what to do about it; ``place`` is the directory as its user wrote it."""
    return DuplicatesOutcome(
        summary.exit_code, f"{summary.result.value}: {_sentence(summary)}", _next_step(summary, place)
    )


def _sentence(summary: DuplicatesSummary) -> str:
    messages = f"{format_count(summary.messages, 'message')} of {format_count(summary.producers, 'producer')}"
    found = ", ".join(f"{count:,} {kind}" for kind, count in summary.findings.items() if count)
    unseen = f"{format_count(summary.topics_not_proven, 'topic')} of {summary.topics:,} could not be seen whole"
    match summary.result:
        case TopicResult.CLEAN:
            return f"{messages} in {format_count(summary.topics, 'topic')}: none is stored twice, and no id goes back"
        case TopicResult.NOT_PROVEN:
            return f"{messages}: none of those that were seen is wrong, but {unseen}"
        case TopicResult.FINDINGS:
            also = f"; {unseen}" if summary.topics_not_proven else ""
            return f"{messages}, {found}, in {format_count(summary.topics_with_findings, 'topic')}{also}"


def _next_step(summary: DuplicatesSummary, place: str) -> str:
    match summary.result:
        case TopicResult.CLEAN:
            return "nothing to do"
        case TopicResult.NOT_PROVEN:
            return f"see in {place}/report.html what was not seen and why, then make another extract where that helps"
        case TopicResult.FINDINGS:
            return (
                f"see {place}/report.html, then ask whether brokers deduplicate these topics: "
                "pulsar-sidecar deduplication show TOPIC"
            )
