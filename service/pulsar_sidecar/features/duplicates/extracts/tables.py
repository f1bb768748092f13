"""Tables of an extract and of findings, and the intermediate tables that lead to them: only here are columns named.

Invariants of an extract: the rows of a topic are contiguous, over row groups and over files in the order of their
names, and in the order of its log (ledger, entry, batch index). Every entry of a topic is in exactly one place: as rows
of ``messages``, or in a range of ``unseen``. ``ledgers`` has the ranges of the rows, so that both can be counted again.
Topics are full names of partitions, or of topics without.

A ``row`` counts through an extract: its row group's number times `ROWS_OF_A_GROUP`, plus its place in the group.
"""

from typing import Final

from pulsar_sidecar.features.duplicates.rows import MessageRow
from pulsar_sidecar.reports.schemas import schema_of

ROWS_OF_A_GROUP: Final = 1 << 32
_PRODUCER: Final = "topic string not null, producer string, replicated_from string"
_PLACE: Final = "ledger_id bigint, entry_id bigint, batch_index bigint"

MESSAGES: Final = schema_of("""
    topic name not null, producer name not null, sequence_id bigint not null, ledger_id bigint not null,
    entry_id bigint not null, batch_index integer not null, batch_size integer not null, chunk_id integer not null,
    chunks integer not null, publish_time_ms bigint not null, payload_hash bigint not null, kind tinyint not null,
    payload_state tinyint not null, replicated_from name
""")
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

FINDINGS: Final = schema_of(f"""
    {_PRODUCER}, finding string not null, sequence_id bigint not null, {_PLACE}, message_kind string not null,
    publish_time_ms bigint not null, highest bigint not null, earlier_ledger_id bigint, earlier_entry_id bigint,
    earlier_batch_index bigint
""")
"""Row of each finding (`findings.Finding`); ``finding`` is a `FindingKind`, ``message_kind`` a `MessageKind`.

``highest`` is the highest id of the producer before it; ``earlier_*`` is the message before it with the same id."""

PRODUCERS: Final = schema_of(f"""
    {_PRODUCER}, messages bigint not null, transactional bigint not null, unopened bigint not null,
    unopened_batches bigint not null, gaps bigint not null, first_sequence_id bigint not null,
    last_sequence_id bigint not null, highest bigint not null,
    first_publish_ms bigint not null, last_publish_ms bigint not null, duplicates bigint not null,
    reused bigint not null, repeated bigint not null, going_back bigint not null, epochs bigint not null
""")
"""Row of each producer of a topic (`findings.ProducerCounts`), with the number of its findings of each kind."""

TOPICS: Final = schema_of("""
    topic string not null, rows bigint not null, markers bigint not null, messages bigint not null,
    producers bigint not null, findings bigint not null, unopened_batches bigint not null,
    unseen_ranges bigint not null, trimmed_ranges bigint not null, verdict string not null
""")
"""Row of each topic; ``verdict`` is a `TopicResult`. ``rows`` counts the rows of the extract, ``messages`` those that
were judged; trimmed entries are no longer in the topic and do not count against it."""

TOPIC_SUMS: Final = schema_of("""
    topic string not null, rows bigint, markers bigint, counted bigint, messages bigint, producers bigint,
    findings bigint, unopened_batches bigint, unseen_ranges bigint, trimmed_ranges bigint
""")
"""Parts of `TOPICS` from several tables, to be summed by topic; ``counted`` is the number of rows by the extract's own
table of ledgers."""

SUMMARIES: Final = (
    "row_group", "messages", "transactional", "unopened", "unopened_batches", "gaps", "first_sequence_id",
    "last_sequence_id", "lowest", "highest", "first_publish_ms", "last_publish_ms", "falls",
)  # fmt: skip
"""Columns of each producer in a row group; ``falls`` is true if not every id rises over all before it there."""

TOPIC_PARTS: Final = schema_of("""
    topic string not null, row_group bigint not null, rows bigint not null, markers bigint not null,
    first_ledger_id bigint not null, first_entry_id bigint not null, first_batch_index bigint not null,
    last_ledger_id bigint not null, last_entry_id bigint not null, last_batch_index bigint not null,
    in_order boolean not null
""")
"""Row of each topic in a row group; ``in_order`` is true if its rows are in the order of its log there."""

SUSPECTS: Final = ("row", "highest", "may_begin_epoch")
"""Columns of rows that do not rise (`findings.PossibleDuplicate`)."""

SCHEMAS: Final = {"findings": FINDINGS, "producers": PRODUCERS, "topics": TOPICS}
"""Tables of findings, by their directories."""
