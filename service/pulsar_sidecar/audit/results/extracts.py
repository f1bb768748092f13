"""The rows that a report shows, cut from an audit's tables."""

import pyarrow as pa

from pulsar_sidecar.audit.results.report import EXTRACT_ROWS, Extract, Row


def extract_of(orphans: pa.Table, missing: pa.Table, unattributed: pa.Table, usage: pa.Table) -> Extract:
    """The rows that `Extract` describes, from whole tables."""
    longest = [("length_bytes", "descending"), ("ledger_id", "ascending")]
    return Extract(
        orphans=_first(orphans, longest),
        missing=_first(missing, [("ledger_id", "ascending"), ("referenced_by", "ascending")]),
        unattributed=_first(unattributed, longest),
        owners=_first(usage, [("bytes", "descending"), ("topic", "ascending"), ("kind", "ascending")]),
    )


def _first(table: pa.Table, order: list[tuple[str, str]]) -> tuple[Row, ...]:
    # The metadata's bytes are the only long column, and no report shows them.
    names = [name for name in table.schema.names if name != "metadata"]
    return tuple(table.select(names).sort_by(order).slice(0, EXTRACT_ROWS).to_pylist())
