"""Settings: fields and sources."""
