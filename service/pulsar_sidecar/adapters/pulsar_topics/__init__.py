"""The sidecar's own topics."""
