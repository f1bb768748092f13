"""Publishing exactly once, and the reading half of it."""
