"""Brokers' admin REST API."""
