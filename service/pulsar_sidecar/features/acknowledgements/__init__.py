"""Acknowledgement states: sizes, limits, and the pause of dispatch (PIP-299)."""
