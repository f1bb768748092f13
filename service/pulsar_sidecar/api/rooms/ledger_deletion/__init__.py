"""The routes of ledger deletion."""
