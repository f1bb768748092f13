"""Whole metadata stores as sources of dumps: living ones, snapshots and files."""
