"""Commands that cancel delayed messages."""
