"""Search of an opened extract, up to its summary and report: its row groups on the processors of one machine.

Memory grows with the producers of each row group, and with suspects by 8 bytes for each: they are in parts on a disk,
and each part is judged separately. Invariant: the tables appear all at once or not at all, and only of a complete
extract.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from pulsar_sidecar.features.duplicates.extracts.judging import (
    COUNTED_AS,
    KINDS,
    UNPROVEN,
    demand_counted,
    demand_order,
    judge_suspects,
    judge_topics,
)
from pulsar_sidecar.features.duplicates.extracts.results import (
    DuplicateCounts,
    DuplicatesSummary,
    conclude,
    unseen_parts,
)
from pulsar_sidecar.features.duplicates.extracts.row_groups import (
    SUMMARY_COLUMNS,
    SUSPECT_COLUMNS,
    Mask,
    Numbers,
    ProducerRows,
    ProducerState,
    TopicProducer,
    highest_before,
    rows_with_ids,
    starts_of,
    summarise,
    suspects_of,
    topic_parts,
)
from pulsar_sidecar.features.duplicates.extracts.tables import (
    FINDINGS,
    PRODUCERS,
    SCHEMAS,
    SUMMARIES,
    SUSPECTS,
    TOPIC_PARTS,
    TOPIC_SUMS,
)
from pulsar_sidecar.features.duplicates.manifests import ExtractManifest
from pulsar_sidecar.features.duplicates.verify import TopicResult
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ledgers import UnseenCause
from pulsar_sidecar.reports.documents import SUMMARY_NAME, Engine
from pulsar_sidecar.reports.formatting import Row, format_count
from pulsar_sidecar.reports.pages import REPORT_NAME, page_environment
from pulsar_sidecar.reports.ports import TablesOutput

Worked = TypeVar("Worked")
Columns = Mapping[str, npt.NDArray[np.generic]]

_SUSPECTS_OF_A_PART: Final = 1_000_000
_MOST_PARTS: Final = 256
"""Each part keeps two files open, and many systems allow a process 1,024."""
_MOST_IDS_HELD: Final = 16_000_000
"""Most suspects whose ids, 128 MB, are held to choose the rows that have one of them."""
_SUMMED: Final = tuple(TOPIC_SUMS.names[1:])
_SHOWN_ROWS: Final = 50
_ORDER_OF_FINDINGS: Final = ("topic", "ledger_id", "entry_id", "batch_index", "finding")
_ORDER_OF_PRODUCERS: Final = ("topic", "producer", "replicated_from")


class ExtractTables(Protocol):
    """Opened extract; every file matches its manifest."""

    @property
    def row_groups(self) -> int:
        """Number of row groups of the table of messages, numbered in the order of its rows."""

    def each(
        self, numbers: Sequence[int], columns: Sequence[str], work: Callable[[int, pa.Table], Worked]
    ) -> Iterator[Worked]:
        """Yield the results of work on these row groups in order, maybe from several at once."""

    def table(self, name: str, columns: Sequence[str]) -> pa.Table:
        """Return one of the small tables, whole."""


class Scratch(Protocol):
    """Temporary storage of rows."""

    def add(self, name: str, rows: pa.RecordBatch) -> None:
        """Add rows under a name."""

    def take(self, name: str) -> pa.Table | None:
        """Return all rows under a name; None if there are none."""


@dataclass(slots=True)
class _Summaries:
    """Merged `tables.SUMMARIES` of all row groups, ordered by producer and row group.

    ``of`` has the number of each row's producer, by ``numbers``, which count in order of appearance.
    """

    numbers: dict[TopicProducer, int]
    producers: list[TopicProducer]
    of: Numbers
    is_first: Mask
    columns: dict[str, Numbers]

    @classmethod
    def together(cls, answer: Sequence[ProducerRows]) -> "_Summaries":
        numbers: dict[TopicProducer, int] = {}
        nothing = np.zeros(0, np.int64)
        of = np.concatenate([nothing, *(_numbered(each, numbers) for each in answer)])
        columns = {name: np.concatenate([nothing, *(each.columns[name] for each in answer)]) for name in SUMMARIES}
        order = np.lexsort((columns["row_group"], of))
        of = of[order]
        ordered = {name: values[order] for name, values in columns.items()}
        return cls(numbers, list(numbers), of, starts_of(of), ordered)

    def carry(self) -> tuple[dict[int, dict[TopicProducer, ProducerState]], dict[tuple[int, TopicProducer], int]]:
        """Return the producers whose ids do not rise, by row group; for all others, complete the gaps.

        Also return the places of their rows here, by row group and producer.
        """
        columns, is_first = self.columns, self.is_first
        highest = highest_before(columns["highest"], is_first)
        first, is_last = columns["first_sequence_id"], np.roll(is_first, -1)
        is_suspect = (columns["falls"] > 0) | (~is_first & (columns["lowest"] <= highest))
        columns["gaps"] += ~is_suspect & ~is_first & (first > highest) & (first - 1 > highest)
        columns["gaps"][is_suspect] = 0
        before, after = np.roll(columns["last_sequence_id"], 1), np.roll(first, -1)
        found: defaultdict[int, dict[TopicProducer, ProducerState]] = defaultdict(dict)
        places = {}
        for place in np.flatnonzero(is_suspect).tolist():
            is_new, group, producer = is_first[place], int(columns["row_group"][place]), self.producers[self.of[place]]
            places[group, producer] = place
            found[group][producer] = ProducerState(
                None if is_new else int(highest[place]),
                None if is_new else int(before[place]),
                None if is_last[place] else int(after[place]),
            )
        return dict(sorted(found.items())), places


@dataclass(slots=True)
class _Suspects:
    """Suspects of the second pass, with the lowest and the highest id of each producer's.

    All rows of an id are in the same part on the disk; ``ids`` are fingerprints, ascending; None if they are too many.
    """

    parts: int
    lowest: Numbers
    highest: Numbers
    ids: Numbers | None


@dataclass(slots=True)
class _Found:
    """Written findings: their counts, and the first of them."""

    counts: npt.NDArray[np.int64]
    first: pa.Table = field(default_factory=FINDINGS.empty_table)


@dataclass(frozen=True, slots=True)
class EmbeddedEngine:
    """Engine that finds and writes on one machine."""

    extract: ExtractTables
    open_output: Callable[[Mapping[str, pa.Schema]], AbstractContextManager[TablesOutput]]
    open_scratch: Callable[[], AbstractContextManager[Scratch]]
    report: Callable[[str], None]

    def search(self, manifest: ExtractManifest, sha256: str, *, tool_version: str, place: str) -> DuplicatesSummary:
        """Find duplicates, and write `tables.SCHEMAS` with a summary and a report; an error leaves nothing behind.

        ``sha256`` is the digest of ``manifest``, which all files match; ``place`` the output as its user wrote it.

        Raises:
            InvalidInputError: the extract does not match its own counts, or is not in the order of its logs.
        """
        looks = self.extract.each(
            range(self.extract.row_groups),
            SUMMARY_COLUMNS,
            lambda number, table: (summarise(number, table), topic_parts(number, table)),
        )
        answer = list(looks)
        parts = pa.Table.from_batches([part for _, part in answer], TOPIC_PARTS)
        demand_order(parts)
        summaries = _Summaries.together([summary for summary, _ in answer])
        with self.open_output(SCHEMAS) as output, self.open_scratch() as scratch:
            found = _Found(np.zeros((len(summaries.producers), len(KINDS)), np.int64))
            carried, places = summaries.carry()
            if carried:
                suspects = self._suspects(summaries, carried, places, scratch)
                self._look_for_ids(summaries, suspects, scratch)
                for part in range(suspects.parts):
                    _judge(part, summaries.producers, scratch, found, output)
            producers = _producers_table(summaries, found.counts)
            topics = self._topics(parts, producers)
            for table, rows in (("producers", producers), ("topics", topics)):
                for batch in rows.to_batches():
                    output.write(table, batch)
            files = {file.path: file.sha256 for file in output.close_tables()}
            summary = _summary(manifest, _counts(producers, topics, found.counts), sha256, tool_version, files)
            # The first rows of each table; of producers and topics, those with the most findings.
            shown = {
                "findings": found.first.to_pylist(),
                "producers": _most_findings(producers),
                "topics": _not_clean(topics),
            }
            output.write_text(REPORT_NAME, _report(summary, shown, place))
            output.finish(SUMMARY_NAME, summary.document())
        return summary

    def _suspects(
        self,
        summaries: _Summaries,
        carried: Mapping[int, Mapping[TopicProducer, ProducerState]],
        places: Mapping[tuple[int, TopicProducer], int],
        scratch: Scratch,
    ) -> _Suspects:
        """Reread the row groups where ids do not rise, and store the suspects."""
        numbers, columns = summaries.numbers, summaries.columns
        rows = int(columns["messages"][list(places.values())].sum())
        parts = min(rows // _SUSPECTS_OF_A_PART + 1, _MOST_PARTS)
        lowest = np.full(len(numbers), np.iinfo(np.int64).max)
        highest = np.full(len(numbers), np.iinfo(np.int64).min)
        ids: list[Numbers] = []
        count = 0
        answers = self.extract.each(
            list(carried), SUSPECT_COLUMNS, lambda number, table: suspects_of(number, table, carried[number])
        )
        for group, (answer, gaps) in zip(carried, answers, strict=True):
            for producer, gap in gaps.items():
                columns["gaps"][places[group, producer]] = gap
            of, sequence_id = _numbered(answer, numbers), answer.columns["sequence_id"]
            np.minimum.at(lowest, of, sequence_id)
            np.maximum.at(highest, of, sequence_id)
            kept = {name: answer.columns[name] for name in SUSPECTS}
            _put_aside(scratch, "suspects", parts, answer.columns["fingerprint"], kept)
            count += len(of)
            if count <= _MOST_IDS_HELD:
                ids.append(answer.columns["fingerprint"])
        self.report(f"found {format_count(count, 'message')} whose sequence id does not rise; looking for their ids")
        held = np.unique(np.concatenate(ids)) if count <= _MOST_IDS_HELD else None
        return _Suspects(parts, lowest, highest, held)

    def _look_for_ids(self, summaries: _Summaries, suspects: _Suspects, scratch: Scratch) -> None:
        """Store every row that has the id of a suspect, including the suspects."""
        columns, of = summaries.columns, summaries.of
        may_have = (columns["lowest"] <= suspects.highest[of]) & (columns["highest"] >= suspects.lowest[of])
        bounds: defaultdict[int, dict[TopicProducer, tuple[int, int]]] = defaultdict(dict)
        for place in np.flatnonzero(may_have).tolist():
            producer = of[place]
            about = (int(suspects.lowest[producer]), int(suspects.highest[producer]))
            bounds[int(columns["row_group"][place])][summaries.producers[producer]] = about
        answers = self.extract.each(
            sorted(bounds),
            SUSPECT_COLUMNS,
            lambda number, table: rows_with_ids(number, table, bounds[number], suspects.ids),
        )
        for answer in answers:
            kept = {"producer": _numbered(answer, summaries.numbers), **answer.columns}
            _put_aside(scratch, "stored", suspects.parts, kept.pop("fingerprint"), kept)

    def _topics(self, parts: pa.Table, producers: pa.Table) -> pa.Table:
        ledgers = self.extract.table("ledgers", ["topic", "messages"])
        unseen = self.extract.table("unseen", ["topic", "cause"])
        is_trimmed = pc.equal(unseen.column("cause"), UnseenCause.TRIMMED.value)
        sums = [
            _topic_sums(parts.column("topic"), rows=parts.column("rows"), markers=parts.column("markers")),
            _topic_sums(ledgers.column("topic"), counted=ledgers.column("messages")),
            _topic_sums(
                unseen.column("topic"),
                unseen_ranges=pc.cast(pc.invert(is_trimmed), pa.int64()),
                trimmed_ranges=pc.cast(is_trimmed, pa.int64()),
            ),
            _topic_sums(
                producers.column("topic"),
                messages=producers.column("messages"),
                unopened_batches=producers.column("unopened_batches"),
                producers=pa.array(np.ones(producers.num_rows, np.int64)),
                findings=pa.array(_findings_of(producers)),
            ),
        ]
        grouped = pa.concat_tables(sums).group_by("topic").aggregate([(name, "sum") for name in _SUMMED])
        summed = grouped.select(["topic", *(f"{name}_sum" for name in _SUMMED)]).rename_columns(["topic", *_SUMMED])
        demand_counted(summed)
        return judge_topics(summed.sort_by("topic").cast(TOPIC_SUMS))


# --- between row groups --------------------------------------------------------------------------------------------


def _numbered(answer: ProducerRows, numbers: dict[TopicProducer, int]) -> Numbers:
    """Return each row's producer by a number that is the same in all row groups; new producers get the next number."""
    of = np.array([numbers.setdefault(each, len(numbers)) for each in answer.producers], np.int64)
    return of[answer.of]


def _put_aside(scratch: Scratch, name: str, parts: int, ids: Numbers, columns: Columns) -> None:
    part_of = ids.view(np.uint64) % np.uint64(parts)
    for part in np.unique(part_of).tolist():
        chosen = part_of == part
        arrays = [pa.array(values[chosen]) for values in columns.values()]
        scratch.add(f"{name}-{part}", pa.RecordBatch.from_arrays(arrays, list(columns)))


def _judge(
    part: int, producers: Sequence[TopicProducer], scratch: Scratch, found: _Found, output: TablesOutput
) -> None:
    aside, stored = scratch.take(f"suspects-{part}"), scratch.take(f"stored-{part}")
    if aside is None or stored is None:
        return
    of, kinds, columns = judge_suspects(
        *({name: table.column(name).to_numpy() for name in table.schema.names} for table in (stored, aside))
    )
    np.add.at(found.counts, (of, kinds), 1)
    batch = ProducerRows(producers, of, columns).batch(FINDINGS)
    output.write("findings", batch)
    ascending = [(name, "ascending") for name in _ORDER_OF_FINDINGS]
    together = pa.concat_tables([found.first, pa.Table.from_batches([batch])]).sort_by(ascending)
    found.first = together.slice(0, _SHOWN_ROWS).combine_chunks()


# --- tables --------------------------------------------------------------------------------------------------------


def _producers_table(summaries: _Summaries, counts: npt.NDArray[np.int64]) -> pa.Table:
    if not len(summaries.of):
        return PRODUCERS.empty_table()
    columns, starts = summaries.columns, np.flatnonzero(summaries.is_first)
    ends = np.append(starts[1:], len(summaries.of)) - 1
    answer = {
        **{
            name: np.add.reduceat(columns[name], starts)
            for name in ("messages", "transactional", "unopened", "unopened_batches", "gaps")
        },
        **{name: columns[name][starts] for name in ("first_sequence_id", "first_publish_ms")},
        **{name: columns[name][ends] for name in ("last_sequence_id", "last_publish_ms")},
        "highest": np.maximum.reduceat(columns["highest"], starts),
        **{name: counts[:, place] for place, name in enumerate(COUNTED_AS)},
    }
    batch = ProducerRows(summaries.producers, np.arange(len(starts)), answer).batch(PRODUCERS)
    return pa.Table.from_batches([batch]).sort_by([(name, "ascending") for name in _ORDER_OF_PRODUCERS])


def _topic_sums(topics: pa.Array | pa.ChunkedArray, **sums: pa.Array | pa.ChunkedArray) -> pa.Table:
    zeros = pa.array(np.zeros(len(topics), np.int64))
    return pa.table({"topic": topics, **{name: sums.get(name, zeros) for name in _SUMMED}})


def _findings_of(producers: pa.Table) -> Numbers:
    counted = [producers.column(name).to_numpy() for name in COUNTED_AS]
    findings: Numbers = np.sum(counted, axis=0, dtype=np.int64)
    return findings


def _most_findings(producers: pa.Table) -> Sequence[Row]:
    counted = producers.append_column("findings", pa.array(_findings_of(producers)))
    order = [("findings", "descending"), *((name, "ascending") for name in _ORDER_OF_PRODUCERS)]
    wrong = counted.filter(pc.greater(counted.column("findings"), 0)).sort_by(order)
    return wrong.slice(0, _SHOWN_ROWS).to_pylist()


def _not_clean(topics: pa.Table) -> Sequence[Row]:
    wrong = topics.filter(pc.not_equal(topics.column("verdict"), TopicResult.CLEAN.value))
    return wrong.sort_by([("findings", "descending"), ("topic", "ascending")]).slice(0, _SHOWN_ROWS).to_pylist()


def _counts(producers: pa.Table, topics: pa.Table, counts: npt.NDArray[np.int64]) -> DuplicateCounts:
    of_kinds, summed = counts.sum(axis=0).tolist(), ("rows", "markers", "messages", "unopened_batches")
    return DuplicateCounts(
        topics_with_findings=int(np.count_nonzero(topics.column("findings").to_numpy())),
        topics_not_proven=int(np.count_nonzero(sum(topics.column(name).to_numpy() for name in UNPROVEN))),
        producers=producers.num_rows,
        gaps=int(producers.column("gaps").to_numpy().sum()),
        findings={kind.value: count for kind, count in zip(KINDS, of_kinds, strict=True)},
        **{name: int(topics.column(name).to_numpy().sum()) for name in summed},
    )


# --- summary and report --------------------------------------------------------------------------------------------


def _summary(
    manifest: ExtractManifest, counts: DuplicateCounts, sha256: str, tool_version: str, files: Mapping[str, str]
) -> DuplicatesSummary:
    if counts.rows != manifest.messages:
        raise InvalidInputError(
            f"the extract has {format_count(counts.rows, 'message')}, and its manifest counts {manifest.messages:,}; "
            "extract the messages again"
        )
    return DuplicatesSummary(
        engine=Engine.EMBEDDED,
        tool_version=tool_version,
        extract_sha256=sha256,
        scope=manifest.scope,
        source=manifest.source,
        instance_id=manifest.instance_id,
        extract_times=manifest.machine_times,
        topics=manifest.topics,
        unseen=unseen_parts(manifest.unseen, counts.unopened_batches),
        **structs.asdict(counts),
        files=files,
    )


def _report(summary: DuplicatesSummary, shown: Mapping[str, Sequence[Row]], place: str) -> str:
    environment = page_environment("pulsar_sidecar.features.duplicates.extracts")
    environment.filters |= {"place": _place}
    page = environment.get_template("duplicates.html.j2")
    return page.render(summary=summary, shown=shown, conclusion=conclude(summary, place))


def _place(row: Row, prefix: str = "") -> str:
    parts = [row[f"{prefix}{name}"] for name in ("ledger_id", "entry_id", "batch_index")]
    return "-" if parts[0] is None else ":".join(map(str, parts))
