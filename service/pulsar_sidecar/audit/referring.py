"""Who references one ledger, according to a dump."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.audit.columnar.reader import ColumnReader
from pulsar_sidecar.audit.engine.decoding import (
    NODE_COLUMNS,
    decode_cursor_ledgers,
    decode_log_segments,
    decode_nodes,
)


def referring_paths(
    ledger_id: int,
    nodes: Iterable[pa.RecordBatch],
    cursor_ledgers: Iterable[Mapping[str, Any]],
    log_segments: Iterable[Mapping[str, Any]],
) -> list[str]:
    """The paths of all nodes that reference it, sorted.

    Args:
        ledger_id: the ledger.
        nodes: of the subtrees ``managed-ledgers`` and ``schemas``.
        cursor_ledgers: rows of that table.
        log_segments: rows of that table.
    """
    found = set(_in_nodes(ledger_id, nodes))
    elsewhere = decode_cursor_ledgers(cursor_ledgers)[0] + decode_log_segments(log_segments)[0]
    found |= {reference.path for reference in elsewhere if reference.ledger_id == ledger_id}
    return sorted(found)


def _in_nodes(ledger_id: int, nodes: Iterable[pa.RecordBatch]) -> Iterator[str]:
    wanted = np.array([ledger_id])
    for batch in nodes:
        decoded = decode_nodes(batch.select(list(NODE_COLUMNS)), ColumnReader())
        yield from decoded.lists_naming(wanted).column("path").to_pylist()
        singles = decoded.singles
        yield from singles.filter(pc.equal(singles.column("ledger_id"), ledger_id)).column("path").to_pylist()
