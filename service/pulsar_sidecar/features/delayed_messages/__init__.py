"""Delayed messages beside the brokers (PIP-423): cancelling, expediting and rescheduling them."""
