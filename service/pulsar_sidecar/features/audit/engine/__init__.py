"""Engine of audits: comparison of existing and referenced ledgers, and judgement of the others."""
