"""Checks of a cluster against the sidecar's needs, for new operators."""
