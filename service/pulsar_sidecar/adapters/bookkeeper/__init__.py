"""BookKeeper: ledger metadata bytes, the bookie wire protocol and the bookie HTTP API."""
