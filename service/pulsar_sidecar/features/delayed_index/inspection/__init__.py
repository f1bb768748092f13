"""Inspection of an index: shown, counted, forecast and simulated; nothing is changed."""
