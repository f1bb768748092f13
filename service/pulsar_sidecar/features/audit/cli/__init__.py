"""Commands of audits."""
