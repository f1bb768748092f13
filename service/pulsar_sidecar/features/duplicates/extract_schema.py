"""Tables of an extract: one Arrow schema for each, the only place that names their columns.

Invariants: the rows of a topic are contiguous, over row groups and over files in the order of their names, and in the
order of its log (ledger, entry, batch index). Every entry of a topic is in exactly one place: as rows of ``messages``,
or in a range of ``unseen``. ``ledgers`` has the ranges of the rows, so that both can be counted again. Topics are full
names of partitions, or of topics without.
"""

from typing import Final

import pyarrow as pa

from pulsar_sidecar.features.duplicates.rows import MessageRow
from pulsar_sidecar.reports.schemas import schema_of

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
"""Row of each message; see `rows.MessageRow`. ``kind`` is a `MessageKind`, ``payload_state`` a `PayloadState`."""

UNSEEN: Final = schema_of("""
    topic string not null, ledger_id bigint not null, first_entry_id bigint not null, last_entry_id bigint,
    cause string not null, reason string not null
""")
"""Entries that were not read; ``cause`` is an `UnseenCause`. ``last_entry_id`` is null where the ledger's end is
unknown. A topic with such a row is never clean, unless the cause is ``trimmed``: the topic no longer holds these
entries."""

LEDGERS: Final = schema_of("""
    topic string not null, ledger_id bigint not null, first_entry_id bigint not null, last_entry_id bigint,
    entries bigint not null, messages bigint not null
""")
"""Range of entries of each ledger that was read, both ends included, with the number of its entries that were seen, and
of their rows in ``messages``. A ledger without entries has no row."""

TABLES: Final = {"messages": MESSAGES, "unseen": UNSEEN, "ledgers": LEDGERS}
"""Tables by the name of their folder."""

assert MESSAGES.names == ["topic", *MessageRow._fields]
