"""Maintenance of an index: findings, and changes to a cursor's buckets: planned, approved by a hash, executed."""
