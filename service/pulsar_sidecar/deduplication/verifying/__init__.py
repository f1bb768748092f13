"""Proving that a topic holds no message twice: what its entries say, the rules, and tables of whole tenants."""
