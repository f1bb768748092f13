"""The store's own time, as told by the nodes themselves: reading it writes nothing."""

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.audit.sources.manifests import Moment


def newest(so_far: Moment | None, rows: pa.RecordBatch) -> Moment | None:
    """The newest write among ``so_far`` and rows with ``mzxid`` and ``mtime_ms``.

    The newest by the store's order, not by its clock: a server whose clock once ran ahead may have left times from the
    future behind.
    """
    mzxids = rows.column("mzxid")
    found = pc.max(mzxids).as_py()
    if found is None or (so_far is not None and found <= so_far.zxid):
        return so_far
    return Moment(found, rows.column("mtime_ms")[pc.index(mzxids, found).as_py()].as_py())
