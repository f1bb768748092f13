"""Proof that a topic holds no message twice: rows of its entries, rules, and tables of whole tenants."""
