"""Delayed index (PIP-195): the buckets that brokers keep of delayed messages, read, checked, repaired and built."""
