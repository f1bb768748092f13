"""The second phase of PIP-186: pending deletions judged, carried out, retried."""
