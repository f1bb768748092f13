"""Inspection of deduplication, which publishes nothing to existing topics."""
