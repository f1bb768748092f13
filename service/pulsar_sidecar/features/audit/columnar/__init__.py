"""Vectorised reading of nodes, a column at a time, with the same results as the exact decoder."""
