"""The first phase by observation: which ledgers nothing references any more, whoever took the last reference away."""
