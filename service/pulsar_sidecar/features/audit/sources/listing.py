"""Listing of every ledger that BookKeeper has.

Invariant: a listing is complete or there is none; ids are compared as numbers, and no id is in it twice.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.features.audit.columnar.reader import ColumnReader
from pulsar_sidecar.features.audit.ports import LedgerSource, OpenOutput
from pulsar_sidecar.features.audit.results.tables import LEDGERS, Table, schemas_of
from pulsar_sidecar.features.audit.sources.manifests import InputKind, Manifest, NewestWrite, RowCounts
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.progress import Report
from pulsar_sidecar.reports.documents import MANIFEST_NAME
from pulsar_sidecar.reports.formatting import format_count

_PROGRESS_LEDGERS = 200_000
METADATA_LEFT_OUT = "metadata"


def newest(so_far: NewestWrite | None, rows: pa.RecordBatch) -> NewestWrite | None:
    """Return the newest write among ``so_far`` and rows with ``mzxid`` and ``mtime_ms``, by the store's own time.

    The time is read from the nodes themselves, so nothing is written. The store's order decides, not its clock: a
    server whose clock once ran ahead may have left times from the future behind.
    """
    mzxids = rows.column("mzxid")
    found = pc.max(mzxids).as_py()
    if found is None or (so_far is not None and found <= so_far.zxid):
        return so_far
    return NewestWrite(found, rows.column("mtime_ms")[pc.index(mzxids, found).as_py()].as_py())


def list_ledgers(
    source: LedgerSource,
    open_output: OpenOutput,
    clock: Clock,
    report: Report,
    *,
    ledgers_root: str,
    with_metadata: bool,
    tool_version: str,
) -> Manifest:
    """Make a listing; nothing is left behind if it fails.

    `InvalidInputError`: there is something at the output's place. `TemporaryError`: it could not be finished.
    """
    started_ms = clock.now_ms()
    rows = unreadable = 0
    as_of: NewestWrite | None = None
    with open_output(schemas_of(Table.LEDGERS)) as output:
        instance_id = source.instance_id()
        for batch in source.batches():
            output.write(Table.LEDGERS, batch)
            if (rows + batch.num_rows) // _PROGRESS_LEDGERS > rows // _PROGRESS_LEDGERS:
                report(f"{format_count(rows + batch.num_rows, 'ledger')} so far")
            rows += batch.num_rows
            unreadable += batch.num_rows - batch.column("unreadable").null_count
            as_of = newest(as_of, batch)
        if not rows:
            raise TemporaryError(
                "the source lists no ledger, and no cluster is without one: check the address and --ledgers-root-path"
            )
        report(f"{format_count(rows, 'ledger')}, {unreadable:,} of them unreadable")
        ending = source.ending()
        files = output.close_tables()
        manifest = Manifest(
            kind=InputKind.LISTING,
            source=source.source,
            tool_version=tool_version,
            ledgers_root=ledgers_root,
            instance_id=instance_id,
            cluster_name=None,
            zxids=ending.zxids,
            as_of=as_of,
            counts={Table.LEDGERS.value: RowCounts(rows, unreadable)},
            left_out=() if with_metadata else (METADATA_LEFT_OUT,),
            allows_deletion=not ending.reservations,
            reservations=ending.reservations,
            proof=ending.proof,
            files=files,
            machine_times=(started_ms, clock.now_ms()),
        )
        output.finish(MANIFEST_NAME, manifest.document())
    return manifest


def ledgers_among(nodes: Iterator[pa.RecordBatch], ledgers_root: str) -> Iterator[pa.RecordBatch]:
    """Yield the ledgers among BookKeeper's nodes as `LEDGERS`; `TemporaryError` if a directory is unreadable."""
    for batch in nodes:
        ids = ColumnReader().ledger_ids(batch.column("path"), ledgers_root)
        _demand_readable_directories(batch.filter(pc.is_null(ids)))
        ledgers = batch.filter(pc.is_valid(ids))
        if ledgers.num_rows:
            columns = {
                **dict(zip(ledgers.schema.names, ledgers.columns, strict=True)),
                "ledger_id": ids.drop_null(),
                "metadata": ledgers.column("value"),
            }
            yield pa.RecordBatch.from_arrays([columns[name] for name in LEDGERS.names], schema=LEDGERS)


def _demand_readable_directories(directories: pa.RecordBatch) -> None:
    unreadable = directories.filter(pc.is_valid(directories.column("unreadable")))
    if unreadable.num_rows:
        first = unreadable.slice(0, 1).to_pylist()[0]
        raise TemporaryError(
            f"{first['path']} cannot be listed ({first['unreadable']}); "
            "set a credential that may list it with --metadata-store-auth"
        )
