"""Rows that wait compressed between judging and writing, in a tenth of their memory."""

from collections.abc import Iterator

import pyarrow as pa
from pyarrow import ipc


class PackedRows:
    """Batches of one table; iterating unpacks one after the other."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.rows = 0
        self._packed: list[pa.Buffer] = []

    def add(self, rows: pa.RecordBatch) -> None:
        self.rows += rows.num_rows
        sink = pa.BufferOutputStream()
        options = ipc.IpcWriteOptions(compression="zstd")  # type: ignore[attr-defined]  # the stubs lack it
        with ipc.new_stream(sink, self.schema, options=options) as stream:  # type: ignore[call-arg]
            stream.write_batch(rows)
        self._packed.append(sink.getvalue())

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for packed in self._packed:
            with ipc.open_stream(packed) as stream:
                yield from stream
