"""An extract: what the entries of many topics say, as tables (`extract_schema`), for whoever compares whole tenants.

Invariant: an extract is complete or there is none. Every entry of every ledger, from the first to the last, is counted
once: in a row of ``ledgers`` because it was seen, or in a range of ``unseen``; a hole between two of them ends it all.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from pulsar_sidecar.analysis.documents import MANIFEST_NAME
from pulsar_sidecar.analysis.ports import TablesOutput
from pulsar_sidecar.deduplication.verifying.extract_schema import LEDGERS, MESSAGES, TABLES, UNSEEN
from pulsar_sidecar.deduplication.verifying.manifests import ExtractManifest, UnseenCount, parse_manifest
from pulsar_sidecar.deduplication.verifying.ports import TopicMessages
from pulsar_sidecar.deduplication.verifying.rows import MessageRow
from pulsar_sidecar.deduplication.verifying.verify import Progress
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import UnseenEntries
from pulsar_sidecar.model.names import TopicName

OpenOutput = Callable[[dict[str, pa.Schema]], AbstractContextManager[TablesOutput]]
Stream = Iterator[Sequence[MessageRow] | UnseenEntries]

_AT_ONCE: Final = 32_768
_NAMES: Final = MESSAGES.field("topic").type


@dataclass(frozen=True, slots=True)
class Origin:
    """What an extract is of; see `ExtractManifest`."""

    scope: str
    source: str
    instance_id: str
    tool_version: str


def extract(
    origin: Origin,
    topics: Iterable[TopicName],
    messages: TopicMessages,
    open_output: OpenOutput,
    progress: Progress,
    clock: Clock,
) -> ExtractManifest:
    """Read all of the topics, and write the tables and their manifest.

    Raises:
        TemporaryError: the metadata store could not be asked, or the tables could not be written.
    """
    started_ms = clock.now_ms()
    with open_output(dict(TABLES)) as output:
        counts = _Counts()
        for topic in topics:
            stream = messages.read(topic)
            try:
                first = next(stream, None)
            except NotFoundError:
                counts.gone += 1
                continue
            counts.topics += 1
            if first is not None:
                _write_topic(output, topic, progress.of(topic, "extracting", chain([first], stream)), counts)
        manifest = ExtractManifest(
            tool_version=origin.tool_version,
            scope=origin.scope,
            source=origin.source,
            instance_id=origin.instance_id,
            topics=counts.topics,
            gone=counts.gone,
            ledgers=counts.ledgers,
            entries=counts.entries,
            messages=counts.messages,
            unseen=counts.unseen(),
            files=output.close_tables(),
            machine_times=(started_ms, clock.now_ms()),
        )
        # Whoever reads it demands that the counts are those of the files; so do we, before it is to be seen.
        parse_manifest(manifest.document())
        output.finish(MANIFEST_NAME, manifest.document())
        return manifest


class _Counts:
    """What goes into the manifest."""

    def __init__(self) -> None:
        self.topics = self.gone = self.ledgers = self.entries = self.messages = 0
        self._ranges: Counter[str] = Counter()
        self._entries: Counter[str] = Counter()
        self._unbounded: Counter[str] = Counter()

    def not_seen(self, unseen: UnseenEntries) -> None:
        cause = unseen.cause.value
        self._ranges[cause] += 1
        if unseen.last_entry_id is None:
            self._unbounded[cause] += 1
        else:
            self._entries[cause] += unseen.last_entry_id - unseen.first_entry_id + 1

    def unseen(self) -> dict[str, UnseenCount]:
        return {
            cause: UnseenCount(ranges, self._entries[cause], self._unbounded[cause])
            for cause, ranges in self._ranges.items()
        }


class _Ledger:
    """One ledger as it is read: what was seen of it, and that nothing was left out."""

    def __init__(self, ledger_id: LedgerId) -> None:
        self.ledger_id = ledger_id
        self.entries = self.messages = 0
        self.first: int | None = None
        self.last = -1
        self._next: int | None = 0

    def take(self, topic: TopicName, first: int, last: int | None) -> None:
        """Entries that come next, seen or not."""
        if first != self._next:
            raise TemporaryError(f"ledger {self.ledger_id} of {topic} was not read in order at entry {first}")
        self._next = None if last is None else last + 1

    def seen(self, entry_id: int, messages: int) -> None:
        self.first = entry_id if self.first is None else self.first
        self.last = entry_id
        self.entries += 1
        self.messages += messages


def _write_topic(output: TablesOutput, topic: TopicName, stream: Stream, counts: _Counts) -> None:
    rows: list[MessageRow] = []
    unseen: list[UnseenEntries] = []
    ledgers: list[_Ledger] = []
    for each in stream:
        ledger_id = each.ledger_id if isinstance(each, UnseenEntries) else each[0].ledger_id
        if not ledgers or ledgers[-1].ledger_id != ledger_id:
            ledgers.append(_Ledger(ledger_id))
        if isinstance(each, UnseenEntries):
            ledgers[-1].take(topic, each.first_entry_id, each.last_entry_id)
            unseen.append(each)
            counts.not_seen(each)
            continue
        entry_id = each[0].entry_id
        ledgers[-1].take(topic, entry_id, entry_id)
        ledgers[-1].seen(entry_id, len(each))
        rows += each
        if len(rows) >= _AT_ONCE:
            output.write("messages", _message_rows(topic, rows))
            rows.clear()
    if rows:
        output.write("messages", _message_rows(topic, rows))
    seen = [ledger for ledger in ledgers if ledger.entries]
    counts.ledgers += len(seen)
    counts.entries += sum(ledger.entries for ledger in seen)
    counts.messages += sum(ledger.messages for ledger in seen)
    if seen:
        ranges = ((each.ledger_id, each.first, each.last, each.entries, each.messages) for each in seen)
        output.write("ledgers", _rows(LEDGERS, topic, ranges))
    if unseen:
        output.write("unseen", _rows(UNSEEN, topic, map(_unseen_row, unseen)))


def _message_rows(topic: TopicName, rows: Sequence[MessageRow]) -> pa.RecordBatch:
    names = pa.array([str(topic)] * len(rows), _NAMES)
    columns = zip(MESSAGES, (None, *zip(*rows, strict=True)), strict=True)
    arrays = [names if values is None else pa.array(values, column.type) for column, values in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=MESSAGES)


def _rows(schema: pa.Schema, topic: TopicName, rows: Iterable[tuple[Any, ...]]) -> pa.RecordBatch:
    """Rows of a table whose first column is the topic; the others in the order of its columns."""
    named = [dict(zip(schema.names, (str(topic), *row), strict=True)) for row in rows]
    return pa.RecordBatch.from_pylist(named, schema=schema)


def _unseen_row(unseen: UnseenEntries) -> tuple[Any, ...]:
    return unseen.ledger_id, unseen.first_entry_id, unseen.last_entry_id, unseen.cause.value, unseen.reason
