"""Deduplication (PIP-6): publishing exactly once, what brokers remember of producers, and proof of no duplicate."""
