"""The tables of an extract: one Arrow schema for each, the only place that names their columns.

Invariants: the rows of a topic follow each other without another topic's between them, over row groups and over files
in the order of their names, and each topic's rows are in the order of its log (ledger, entry, batch index). Every entry
of a topic is in exactly one place: as rows of ``messages``, or in a range of ``unseen``. ``ledgers`` has the ranges
of the rows, so that both can be counted again. Topics are full names of partitions, or of topics without.
"""

from typing import Final

import pyarrow as pa

from pulsar_sidecar.analysis.schemas import schema_of
from pulsar_sidecar.deduplication.verifying.rows import MessageRow

_NAME: Final = pa.dictionary(pa.int32(), pa.string())
_COLUMNS: Final = {
    "topic": _NAME,
    "producer": _NAME,
    "sequence_id": pa.int64(),
    "ledger_id": pa.int64(),
    "entry_id": pa.int64(),
    "batch_index": pa.int32(),
    "batch_size": pa.int32(),
    "chunk_id": pa.int32(),
    "chunks": pa.int32(),
    "publish_time_ms": pa.int64(),
    "payload_hash": pa.int64(),
    "kind": pa.int8(),
    "payload_state": pa.int8(),
    "replicated_from": _NAME,
}

MESSAGES: Final = pa.schema([pa.field(name, kind, name == "replicated_from") for name, kind in _COLUMNS.items()])
"""One row for each message; see `rows.MessageRow`. ``kind`` is a `MessageKind`, ``payload_state`` a `PayloadState`."""

UNSEEN: Final = schema_of("""
    topic string not null, ledger_id bigint not null, first_entry_id bigint not null, last_entry_id bigint,
    cause string not null, reason string not null
""")
"""Entries that were not read; ``cause`` is an `UnseenCause`. ``last_entry_id`` is null where it is not known where the
ledger ends. A topic with such a row is never clean, unless the cause is ``trimmed``: the topic holds them no more."""

LEDGERS: Final = schema_of("""
    topic string not null, ledger_id bigint not null, first_entry_id bigint not null, last_entry_id bigint,
    entries bigint not null, messages bigint not null
""")
"""The range of entries of each ledger that was read, both ends included, with how many entries of it were seen, and
how many rows of ``messages`` they gave. A ledger without entries has no row."""

TABLES: Final = {"messages": MESSAGES, "unseen": UNSEEN, "ledgers": LEDGERS}
"""By the name of their folder."""

assert MESSAGES.names == ["topic", *MessageRow._fields]
