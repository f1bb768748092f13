"""The orphan-ledger audit on Spark: the same tables as the embedded engine's, at any size."""
