"""Who may own or reference a ledger: one closed list, used by every room."""
