"""Bulk decoding of ZooKeeper's serialised nodes into the columns of `audit.results.tables.NODES`.

Python only records each node's place in memory; cutting and decoding is done for a whole batch at once, which is
several times faster than an object for each part of each node.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pulsar_sidecar.features.audit.results.tables import NODES

Places = npt.NDArray[np.int32]
"""Offsets in a piece of memory at which parts of nodes begin or end, ascending."""

# The start of StatPersisted and of Stat, which agree so far.
_STAT = np.dtype(
    [(name, ">i8") for name in ("czxid", "mzxid", "ctime", "mtime")]
    + [(name, ">i4") for name in ("version", "cversion", "aversion")]
    + [("ephemeral_owner", ">i8")]
)
_CONTAINER = -(2**31)
_TIME_TO_LIVE = -1


def read_nodes(
    paths: pa.Array, data: bytes, value_starts: Places, value_ends: Places, stat_starts: Places
) -> pa.RecordBatch:
    """Return a batch of nodes that were read."""
    windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), _STAT.itemsize)
    stats = windows[stat_starts].view(_STAT)[:, 0]
    owners = stats["ephemeral_owner"].astype(np.int64)
    # An owner is a session, or the mark of a container or of a time to live (``EphemeralType``).
    marked = (owners >> 32 == _CONTAINER) | (owners >> 56 == _TIME_TO_LIVE)
    numbers = (stats[name].astype(np.int64) for name in ("version", "ctime", "mtime", "czxid", "mzxid"))
    columns = [*map(pa.array, numbers), pa.array((owners != 0) & ~marked), pa.nulls(len(paths), pa.string())]
    return pa.RecordBatch.from_arrays([paths, cut(data, value_starts, value_ends), *columns], schema=NODES)


def cut(data: bytes, starts: Places, ends: Places) -> pa.Array:
    """Return the pieces of ``data`` as an array of binaries, copied out of it.

    An array of binaries is laid over the whole memory, in which every second element is a piece; Arrow copies those
    out in one step.
    """
    if not len(starts):
        return pa.array([], pa.binary())
    bounds = np.stack((starts, ends), axis=1).reshape(-1)
    laid_over = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    return laid_over.take(pa.array(np.arange(0, len(bounds), 2, dtype=np.int32)))


def named_nodes(paths: Sequence[str], unreadable: str | None) -> pa.RecordBatch:
    """Return a batch of nodes that exist and could not be read for this reason, or were not read if it is None."""
    nothing = [pa.nulls(len(paths), field.type) for field in NODES][1:-1]
    reasons = pa.array([unreadable] * len(paths), pa.string())
    return pa.RecordBatch.from_arrays([pa.array(paths, pa.string()), *nothing, reasons], schema=NODES)
