"""First phase of PIP-186 for a whole topic: record every ledger, then have a broker delete the topic."""
