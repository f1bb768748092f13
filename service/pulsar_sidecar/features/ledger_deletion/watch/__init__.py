"""Leak detection: ledgers that lost their last reference without a deletion record."""
