"""Cancelling delayed messages (PIP-423): pure decisions, requests, and the records of the log."""
