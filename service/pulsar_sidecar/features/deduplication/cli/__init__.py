"""Commands of deduplication, and its policies of topics and namespaces (PIP-6)."""
