"""References to ledgers that do not exist, and who is affected.

BookKeeper gives out ids in ascending order. So a reference to a ledger that is younger than every ledger that was seen
was made while the inputs were taken, and says nothing: such a one is called missing by the next audit or by none.

A compaction cursor's node goes on naming the compacted ledger that it named when its cursor ledger was begun. Where the
same cursor names a younger one, compaction has replaced the older and deleted it: the older is not missing.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.audit.engine.places import Owner, locate, owner_at
from pulsar_sidecar.audit.results.tables import MISSING_LEDGERS, LedgerKind
from pulsar_sidecar.model.names import java_url_decode


def missing_table(references: pa.Table) -> pa.Table:
    """`MISSING_LEDGERS` of references to missing ledgers (`audit.decoding.REFERENCES`)."""
    rows = sorted(references.to_pylist(), key=lambda row: (row["ledger_id"], row["kind"], row["path"]))
    return pa.Table.from_batches(
        [pa.RecordBatch.from_pylist([missing_row(row) for row in rows], schema=MISSING_LEDGERS)], MISSING_LEDGERS
    )


def made_before(references: pa.Table, newest: int) -> pa.Table:
    """The `audit.decoding.REFERENCES` to ledgers that are not younger than ``newest``."""
    return references.filter(pc.less_equal(references.column("ledger_id"), newest))


def not_replaced(gone: pa.Table, singles: pa.Table) -> pa.Table:
    """The `audit.decoding.SINGLES` in ``gone`` without compacted ledgers whose cursor names a younger one."""
    compacted = singles.filter(pc.equal(singles.column("kind"), LedgerKind.COMPACTED.value))
    youngest: dict[str, int] = {}
    for path, ledger_id in zip(*(compacted.column(name).to_pylist() for name in ("path", "ledger_id")), strict=True):
        youngest[path] = max(ledger_id, youngest.get(path, -1))
    stays = [
        row["kind"] != LedgerKind.COMPACTED.value or row["ledger_id"] == youngest[row["path"]]
        for row in gone.to_pylist()
    ]
    return gone.filter(pa.array(stays, pa.bool_()))


def missing_row(reference: Mapping[str, Any]) -> dict[str, Any]:
    """One row."""
    kind, path = LedgerKind(reference["kind"]), reference["path"]
    owner = Owner() if kind is LedgerKind.LOG_SEGMENT else owner_at(path)
    cursor = _cursor_name(path)
    return {
        "ledger_id": reference["ledger_id"],
        "kind": kind.value,
        "referenced_by": path,
        "tenant": owner.tenant,
        "namespace": owner.namespace,
        "topic": owner.topic,
        "cursor_name": cursor,
        "entries": reference["entries"],
        "size_bytes": reference["size_bytes"],
        "affected": _affected(kind, owner.topic or path, cursor, reference),
    }


def _cursor_name(path: str) -> str | None:
    cursor = locate(path).cursor
    if cursor is None:
        return None
    try:
        return java_url_decode(cursor)
    except UnicodeError:
        return cursor


def _affected(kind: LedgerKind, whose: str, cursor: str | None, reference: Mapping[str, Any]) -> str:
    match kind:
        case LedgerKind.DATA if reference["size_bytes"] is None:
            return f"{whose} lost the ledger that it wrote to last, with an unknown number of entries"
        case LedgerKind.DATA:
            entries, size = reference["entries"], reference["size_bytes"]
            return f"{whose} lost {entries} entries ({size} bytes); who reads there stops or skips them"
        case LedgerKind.CURSOR:
            return f"the subscription {cursor} of {whose} goes back to an older position and delivers messages again"
        case LedgerKind.SCHEMA:
            return f"producers and consumers of {whose} cannot get one version of its schema"
        case LedgerKind.COMPACTED:
            lost = f"readers of the compacted view of {whose} fail until it is compacted again"
            return f"{lost}, unless a broker has just replaced it and not yet written that down (within a minute)"
        case LedgerKind.DELAYED_INDEX_BUCKET:
            return (
                f"no message is lost, but once {whose} is loaded again, brokers of 4.0.8 keep all delayed messages of "
                f"the subscription {cursor} in memory, after reading its backlog again, and leave its other buckets "
                "behind until it is deleted"
            )
        case LedgerKind.LOG_SEGMENT:
            return f"the package or the state that {whose} belongs to cannot be read whole"
        case LedgerKind.UNKNOWN:
            return f"whoever owns {whose} cannot read it"
