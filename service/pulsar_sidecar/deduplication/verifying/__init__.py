"""Proving that a topic holds no message twice: what its entries hold, the rules, and tables of whole tenants."""
