from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from pyarrow import RecordBatch, Schema, Table

class ParquetWriter:
    def __init__(
        self,
        where: Any,
        schema: Schema,
        *,
        compression: str = ...,
        use_dictionary: bool | list[str] = ...,
        column_encoding: Mapping[str, str] = ...,
    ) -> None: ...
    def write_table(self, table: Table, row_group_size: int | None = ...) -> None: ...
    def close(self) -> None: ...

class RowGroupMetaData:
    num_rows: int

class FileMetaData:
    num_rows: int
    num_row_groups: int
    def row_group(self, i: int) -> RowGroupMetaData: ...

def read_metadata(where: Any) -> FileMetaData: ...

class ParquetFile:
    def __init__(self, source: Any) -> None: ...
    def __enter__(self) -> ParquetFile: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def read_row_group(self, i: int, columns: list[str] | None = ..., use_threads: bool = ...) -> Table: ...
    def iter_batches(
        self,
        batch_size: int = ...,
        row_groups: list[int] | None = ...,
        columns: list[str] | None = ...,
        use_threads: bool = ...,
    ) -> Iterator[RecordBatch]: ...
