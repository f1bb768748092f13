"""Cancelling delayed messages (PIP-423): pure decisions and what the log keeps."""
