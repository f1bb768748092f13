"""Commands of two-phase deletion."""
