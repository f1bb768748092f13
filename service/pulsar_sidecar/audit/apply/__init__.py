"""Carrying a plan out, and removing what is no longer needed."""
