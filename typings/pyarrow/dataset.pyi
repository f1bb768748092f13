from pathlib import Path
from typing import Any

from pyarrow import Schema, Table

class Dataset:
    def to_table(self, *, columns: list[str] | None = ..., filter: Any = ...) -> Table: ...

def dataset(source: Path | str, *, schema: Schema | None = ..., format: str | None = ...) -> Dataset: ...
