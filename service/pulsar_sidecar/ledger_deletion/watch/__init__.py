"""The first phase by observation: which ledgers lost their last reference."""
