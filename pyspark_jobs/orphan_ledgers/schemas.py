"""The audit's Arrow schemas as Spark's."""

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType


def spark_schema(schema: pa.Schema) -> StructType:
    """The same columns; all may be null, as in every file that Spark reads."""
    return StructType([StructField(field.name, field.dataType, True) for field in from_arrow_schema(schema)])
