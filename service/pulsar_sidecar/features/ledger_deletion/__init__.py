"""PIP-186: two-phase ledger deletion over the system topic ``__ledger_deletion``."""
