"""Delayed delivery beside the brokers: cancelling messages that wait for their due time (PIP-423)."""
