"""Tables of the audit as Parquet files."""
