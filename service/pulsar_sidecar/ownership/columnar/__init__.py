"""Vectorised reading of many nodes at once, exactly as the exact decoders read each of them."""
