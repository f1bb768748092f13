"""The demonstration: what the sidecar does, on a real cluster, with measured numbers."""
