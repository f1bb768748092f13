"""Extract of the metadata of messages in many topics, as tables (`extracts.tables`), to compare whole tenants.

Invariant: an extract is complete or there is none. Every entry of every ledger, from the first to the last, is counted
once: in a row of ``ledgers`` because it was seen, or in a range of ``unseen``; a gap between two of them fails the
extract.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from pulsar_sidecar.features.duplicates.extracts.tables import LEDGERS, MESSAGES, TABLES, UNSEEN
from pulsar_sidecar.features.duplicates.manifests import ExtractManifest, UnseenCount, parse_manifest
from pulsar_sidecar.features.duplicates.rows import MessageRow
from pulsar_sidecar.features.duplicates.verify import Progress, Stream, TopicMessages
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import UnseenEntries
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.reports.documents import MANIFEST_NAME
from pulsar_sidecar.reports.ports import TablesOutput

OpenOutput = Callable[[dict[str, pa.Schema]], AbstractContextManager[TablesOutput]]

_AT_ONCE: Final = 32_768


def extract(
    topics: Iterable[TopicName],
    messages: TopicMessages,
    open_output: OpenOutput,
    progress: Progress,
    clock: Clock,
    *,
    scope: str,
    source: str,
    instance_id: str,
    tool_version: str,
) -> ExtractManifest:
    """Read all of the topics, and write the tables and their manifest, which takes the strings unchanged.

    `TemporaryError`: the metadata store could not be read, or the tables could not be written.
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
            tool_version=tool_version,
            scope=scope,
            source=source,
            instance_id=instance_id,
            **vars(counts),
            files=output.close_tables(),
            machine_times=(started_ms, clock.now_ms()),
        )
        # Readers demand that the counts match the files, so the writer checks it before the manifest appears.
        parse_manifest(manifest.document())
        output.finish(MANIFEST_NAME, manifest.document())
        return manifest


class _Counts:
    """Counts of the manifest, by its names."""

    def __init__(self) -> None:
        self.topics = self.gone = self.ledgers = self.entries = self.messages = 0
        self.unseen: dict[str, UnseenCount] = {}

    def not_seen(self, unseen: UnseenEntries) -> None:
        before = self.unseen.get(unseen.cause.value, UnseenCount(0, 0, 0))
        entries, unbounded = before.entries, before.unbounded
        if unseen.last_entry_id is None:
            unbounded += 1
        else:
            entries += unseen.last_entry_id - unseen.first_entry_id + 1
        self.unseen[unseen.cause.value] = UnseenCount(before.ranges + 1, entries, unbounded)


class _Ledger:
    """Ledger while it is read: the seen entries, and the check that none is left out."""

    def __init__(self, ledger_id: LedgerId) -> None:
        self.ledger_id = ledger_id
        self.entries = self.messages = 0
        self.first: int | None = None
        self.last = -1
        self._next: int | None = 0

    def take(self, topic: TopicName, first: int, last: int | None, messages: int = 0) -> None:
        """Add the next entries: one with its messages, at least one, or some that were not seen."""
        if first != self._next:
            raise TemporaryError(f"ledger {self.ledger_id} of {topic} was not read in order at entry {first}")
        self._next = None if last is None else last + 1
        if messages:
            self.first = first if self.first is None else self.first
            self.last = first
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
        ledgers[-1].take(topic, entry_id, entry_id, len(each))
        rows += each
        if len(rows) >= _AT_ONCE:
            output.write("messages", _table(MESSAGES, topic, rows))
            rows.clear()
    if rows:
        output.write("messages", _table(MESSAGES, topic, rows))
    seen = [ledger for ledger in ledgers if ledger.entries]
    counts.ledgers += len(seen)
    counts.entries += sum(ledger.entries for ledger in seen)
    counts.messages += sum(ledger.messages for ledger in seen)
    if seen:
        ranges = [(each.ledger_id, each.first, each.last, each.entries, each.messages) for each in seen]
        output.write("ledgers", _table(LEDGERS, topic, ranges))
    if unseen:
        causes = [
            (each.ledger_id, each.first_entry_id, each.last_entry_id, each.cause.value, each.reason) for each in unseen
        ]
        output.write("unseen", _table(UNSEEN, topic, causes))


def _table(schema: pa.Schema, topic: TopicName, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Return the rows, at least one; the topic is the first column, and the others are in order."""
    columns = ([str(topic)] * len(rows), *zip(*rows, strict=True))
    arrays = [pa.array(values, column.type) for column, values in zip(schema, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
