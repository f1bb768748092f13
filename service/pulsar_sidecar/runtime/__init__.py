"""What the workflow of every room needs while a sidecar runs."""
