"""The demo of the sidecar on a real cluster, with measured numbers."""
