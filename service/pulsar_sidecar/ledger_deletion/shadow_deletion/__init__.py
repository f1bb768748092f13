"""Deleting shadow topics (PIP-180) without touching their sources' ledgers."""
