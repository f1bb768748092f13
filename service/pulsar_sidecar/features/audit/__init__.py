"""Audits: comparison of BookKeeper's ledgers with the references in the metadata store."""
