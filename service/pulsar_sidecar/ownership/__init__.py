"""The closed list of owners of ledgers, and of references to them, used by every feature."""
