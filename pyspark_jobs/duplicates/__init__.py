"""Duplicate messages of whole tenants on Spark: the same tables as the embedded engine's, at any size."""
