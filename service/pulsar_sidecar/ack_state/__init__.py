"""How full acknowledgement states are, and what brokers do about it (PIP-299)."""
