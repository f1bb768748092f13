"""Vectorised reading of nodes, a column at a time: it must read what the exact decoder reads."""
