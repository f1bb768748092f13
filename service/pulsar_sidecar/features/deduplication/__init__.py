"""Deduplication (PIP-6): stored state, policies, stuck cursors, and a check of brokers."""
