"""Workflow of cancelling: the only package of this feature that waits, logs or reads the clock."""
