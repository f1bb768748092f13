"""Exactly-once publishing and reading."""
