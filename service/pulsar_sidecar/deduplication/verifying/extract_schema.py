"""The tables of an extract: one Arrow schema for each, the only place that names their columns.

Invariants: the rows of a topic follow each other without another topic's between them, over row groups and over files
in the order of their names, and each topic's rows are in the order of its log (ledger, entry, batch index). Every entry
of a topic is in exactly one place: as rows of ``messages``, or in a range of ``unseen``. ``ledgers`` says which ranges
those are, so that both can be counted again. Topics are full names of partitions, or of topics without.
"""

from typing import Final

import pyarrow as pa

from pulsar_sidecar.deduplication.verifying.rows import MessageRow

_NAME: Final = pa.dictionary(pa.int32(), pa.string())


def _schema(**columns: pa.DataType) -> pa.Schema:
    nullable = {"replicated_from", "last_entry_id"}
    return pa.schema([pa.field(name, kind, nullable=name in nullable) for name, kind in columns.items()])


MESSAGES: Final = _schema(
    topic=_NAME,
    producer=_NAME,
    sequence_id=pa.int64(),
    ledger_id=pa.int64(),
    entry_id=pa.int64(),
    batch_index=pa.int32(),
    batch_size=pa.int32(),
    chunk_id=pa.int32(),
    chunks=pa.int32(),
    publish_time_ms=pa.int64(),
    payload_hash=pa.int64(),
    kind=pa.int8(),
    payload_state=pa.int8(),
    replicated_from=_NAME,
)
"""One row for each message; see `rows.MessageRow`. ``kind`` is a `MessageKind`, ``payload_state`` a `PayloadState`."""

UNSEEN: Final = _schema(
    topic=pa.string(),
    ledger_id=pa.int64(),
    first_entry_id=pa.int64(),
    last_entry_id=pa.int64(),
    cause=pa.string(),
    reason=pa.string(),
)
"""Entries that were not read; ``cause`` is an `UnseenCause`. ``last_entry_id`` is null where nobody knows where the
ledger ends. A topic with such a row is never clean, unless the cause is ``trimmed``: the topic holds them no more."""

LEDGERS: Final = _schema(
    topic=pa.string(),
    ledger_id=pa.int64(),
    first_entry_id=pa.int64(),
    last_entry_id=pa.int64(),
    entries=pa.int64(),
    messages=pa.int64(),
)
"""The range of entries of each ledger that was read, both ends included, with how many entries of it were seen, and
how many rows of ``messages`` they gave. A ledger without entries has no row."""

TABLES: Final = {"messages": MESSAGES, "unseen": UNSEEN, "ledgers": LEDGERS}
"""By the name of their folder."""

assert MESSAGES.names == ["topic", *MessageRow._fields]
