"""Listing of the objects in tiered storage.

Invariant: a listing is complete or there is none. The metadata store's position is read at both ends, so that a
dump can prove that it is later: a broker records an attempt before it writes the first object, so an object that no
dumped list names was not about to be named.
"""

from collections.abc import Callable, Sequence

import pyarrow as pa

from pulsar_sidecar.features.audit.ports import OffloadedObjects, OpenOutput, StoreMoment
from pulsar_sidecar.features.audit.results.tables import OFFLOADED_OBJECTS, Table, schemas_of
from pulsar_sidecar.features.audit.sources.manifests import (
    InputKind,
    Manifest,
    OrderRange,
    Proof,
    RowCounts,
    Source,
    SourceKind,
)
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError
from pulsar_sidecar.model.progress import Report
from pulsar_sidecar.reports.documents import MANIFEST_NAME
from pulsar_sidecar.reports.formatting import format_count

_PROGRESS_OBJECTS = 10_000


def list_offloaded(
    places: Sequence[OffloadedObjects],
    moment: Callable[[], StoreMoment],
    open_output: OpenOutput,
    clock: Clock,
    report: Report,
    *,
    ledgers_root: str,
    cluster_name: str | None,
    tool_version: str,
) -> Manifest:
    """Make a listing.

    Raises:
        InvalidInputError: there is something at the output's place, or the cluster's name is not known.
        TemporaryError: the listing could not be finished; nothing is left behind.
    """
    started_ms = clock.now_ms()
    begun = moment()
    name = _cluster(begun, cluster_name)
    counts = {}
    with open_output(schemas_of(Table.OFFLOADED_OBJECTS)) as output:
        for place in places:
            found = 0
            for rows in place.rows():
                output.write(Table.OFFLOADED_OBJECTS, pa.RecordBatch.from_pylist(rows, schema=OFFLOADED_OBJECTS))
                if (found + len(rows)) // _PROGRESS_OBJECTS > found // _PROGRESS_OBJECTS:
                    report(f"{format_count(found + len(rows), 'object')} of {place.location} so far")
                found += len(rows)
            report(f"{format_count(found, 'object')} in {place.location}")
            counts[place.location] = RowCounts(found, 0)
        ended = moment()
        if ended.instance_id != begun.instance_id or ended.zxid < begun.zxid:
            raise TemporaryError("the metadata store changed its identity meanwhile; list again")
        manifest = Manifest(
            kind=InputKind.OFFLOADED,
            source=Source(SourceKind.OFFLOAD, ", ".join(counts)),
            tool_version=tool_version,
            ledgers_root=ledgers_root,
            instance_id=ended.instance_id,
            cluster_name=name,
            zxids=OrderRange(begun.zxid, ended.zxid),
            as_of=None,
            counts=counts,
            left_out=(),
            allows_deletion=True,
            reservations=(),
            proof=Proof(f"sync at zxid 0x{begun.zxid:x}", f"sync at zxid 0x{ended.zxid:x}"),
            files=output.close_tables(),
            machine_times=(started_ms, clock.now_ms()),
        )
        output.finish(MANIFEST_NAME, manifest.document())
    return manifest


def _cluster(moment: StoreMoment, chosen: str | None) -> str:
    if chosen is None and len(moment.clusters) == 1:
        return moment.clusters[0]
    if chosen is None or chosen not in moment.clusters:
        raise InvalidInputError(
            f"the metadata store knows the clusters {', '.join(moment.clusters) or '(none)'}; name the one whose "
            "brokers offload here, their clusterName, with --cluster"
        )
    return chosen
