"""Rehearsal of a broker's death: what would be forgotten, delivered again, rebuilt, and for how long."""
