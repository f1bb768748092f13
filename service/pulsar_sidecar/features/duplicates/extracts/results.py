"""Summary of the findings, ``summary.json`` beside their tables, with its conclusion.

Invariant: a summary is written last, and only of an extract that was searched completely; a topic with unseen entries
is never clean.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from pulsar_sidecar.features.duplicates.manifests import UnseenCount
from pulsar_sidecar.features.duplicates.requests import DuplicatesOutcome
from pulsar_sidecar.features.duplicates.verify import TopicResult
from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.ledgers import UnseenCause
from pulsar_sidecar.reports.documents import EXIT_CLEAN, EXIT_ERROR, EXIT_FINDINGS, Document, Engine, Limitation
from pulsar_sidecar.reports.formatting import format_count

KIND: Final = "message-duplicates"
FORMAT_VERSION: Final = 1

_CONSEQUENCE: Final = "these messages may repeat others, and others may repeat these"
_LOWEST_ID_ALONE: Final = "only the lowest id of each was compared; its other messages may repeat others"
_TRIMMED: Final = "the topics no longer hold them; a message that repeats one is reported as rising or as going back"


_EXIT_CODES: Final = {
    TopicResult.CLEAN: EXIT_CLEAN,
    TopicResult.FINDINGS: EXIT_FINDINGS,
    TopicResult.NOT_PROVEN: EXIT_ERROR,
}


@decodable
class DuplicateCounts(Document, frozen=True, kw_only=True):
    """Counts over all topics, and findings by `FindingKind`; a topic not proven may have findings, too.

    ``messages`` are the rows that were judged, without ``markers`` and earlier chunks.
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
    """Results apart from the rows of the tables; ``topics`` includes those without messages.

    Attributes:
        extract_sha256: digest of the extract's manifest.
        extract_times: start and end of the extract, milliseconds since the epoch.
        files: SHA-256 of the files, by relative path.
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
        if any(self.findings.values()):
            return TopicResult.FINDINGS
        return TopicResult.NOT_PROVEN if self.topics_not_proven else TopicResult.CLEAN

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES[self.result]

    def document(self) -> dict[str, Any]:
        """Return the summary as JSON has it."""
        counted = msgspec.json.decode(msgspec.json.encode(self, order="deterministic"))
        beginning = {"kind": KIND, "formatVersion": FORMAT_VERSION, "complete": True, "verdict": self.result.value}
        return {**beginning, **counted}


def unseen_parts(counts: Mapping[str, UnseenCount], unopened_batches: int) -> tuple[Limitation, ...]:
    """Return the unseen entries by cause, and the batches that could not be opened."""
    unopened = Limitation("batches whose messages' ids are unknown", unopened_batches, _LOWEST_ID_ALONE)
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
    """Return the conclusion with its next step; ``place`` is the directory as its user wrote it."""
    return DuplicatesOutcome(
        summary.exit_code, f"{summary.result.value}: {_sentence(summary)}", _next_step(summary, place)
    )


def _sentence(summary: DuplicatesSummary) -> str:
    messages = f"{format_count(summary.messages, 'message')} of {format_count(summary.producers, 'producer')}"
    found = ", ".join(f"{count:,} {kind}" for kind, count in summary.findings.items() if count)
    unseen = f"{format_count(summary.topics_not_proven, 'topic')} of {summary.topics:,} could not be read completely"
    match summary.result:
        case TopicResult.CLEAN:
            return f"{messages} in {format_count(summary.topics, 'topic')}: none is stored twice, and no id goes back"
        case TopicResult.NOT_PROVEN:
            return f"{messages}: no finding in what was read, but {unseen}"
        case TopicResult.FINDINGS:
            also = f"; {unseen}" if summary.topics_not_proven else ""
            return f"{messages}, {found}, in {format_count(summary.topics_with_findings, 'topic')}{also}"


def _next_step(summary: DuplicatesSummary, place: str) -> str:
    match summary.result:
        case TopicResult.CLEAN:
            return "nothing to do"
        case TopicResult.NOT_PROVEN:
            return f"see {place}/report.html for unread entries and their causes, and extract again where that helps"
        case TopicResult.FINDINGS:
            return (
                f"see {place}/report.html, then check whether brokers deduplicate these topics: "
                "pulsar-sidecar deduplication show TOPIC"
            )
