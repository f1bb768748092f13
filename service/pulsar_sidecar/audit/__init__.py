"""Audits: what exists in BookKeeper against what the metadata references."""
