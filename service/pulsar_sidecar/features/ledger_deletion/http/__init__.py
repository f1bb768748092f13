"""Routes of ledger deletion."""
