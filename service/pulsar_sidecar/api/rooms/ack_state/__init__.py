"""The routes of acknowledgement state."""
