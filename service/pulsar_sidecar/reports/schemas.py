"""Arrow schemas, written as SQL declares columns; a ``name`` is a string of few values."""

import pyarrow as pa

_TYPES = {
    "string": pa.string(),
    "name": pa.dictionary(pa.int32(), pa.string()),
    "binary": pa.binary(),
    "bigint": pa.int64(),
    "integer": pa.int32(),
    "tinyint": pa.int8(),
    "boolean": pa.bool_(),
    "array<string>": pa.list_(pa.string()),
}


def schema_of(columns: str) -> pa.Schema:
    """Return a schema of columns as SQL and Spark declare them: ``ledger_id bigint not null, metadata binary``."""
    fields = (column.split(maxsplit=2) for column in columns.split(","))
    return pa.schema([pa.field(name, _TYPES[kind], nullable=not rest) for name, kind, *rest in fields])
