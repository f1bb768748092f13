"""Vectorised reading of nodes, a column at a time: it must say what the exact decoder says."""
