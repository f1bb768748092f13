"""Pages of deletions and leaks."""
