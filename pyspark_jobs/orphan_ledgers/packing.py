"""Arrow batches as single values of Spark's rows.

Rows cost Spark microseconds each whenever they are kept, filtered or grouped; a batch that travels as one value costs
that once. What has to meet is packed by shares: all of a topic, or of a ledger, is in one of them.
"""

import zlib
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pulsar_sidecar.audit.arrays import Numbers
from pyarrow import ipc


def pack(batch: pa.RecordBatch) -> bytes:
    """A batch with its schema."""
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def unpack(packed: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """The batches again."""
    for each in packed:
        with ipc.open_stream(pa.py_buffer(each)) as stream:
            yield from stream


def pack_shares(batch: pa.RecordBatch, shares: Numbers) -> Iterator[tuple[int, bytes]]:
    """The rows by their shares; empty shares are left out."""
    for share in np.unique(shares).tolist():
        yield share, pack(batch.filter(pa.array(shares == share)))


def shares_of_ledgers(ids: Numbers, count: int) -> Numbers:
    """Which of so many shares each ledger belongs to."""
    return ids % count


def shares_of_topics(topics: pa.Array, count: int) -> Numbers:
    """The same for topics; what has none belongs to the first."""
    encoded = pc.dictionary_encode(topics)  # type: ignore[attr-defined]  # the stubs lack it
    hashed = [zlib.crc32(topic.encode()) % count for topic in encoded.dictionary.to_pylist()]
    found: Numbers = pa.array(hashed, pa.int64()).take(encoded.indices).fill_null(0).to_numpy()
    return found
