"""The delayed index (PIP-195): what brokers keep of delayed messages in buckets, read, checked, repaired and built."""
