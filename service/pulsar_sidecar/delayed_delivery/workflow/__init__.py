"""The only place in this room that waits, logs or looks at the clock."""
