"""What waits, asks and remembers: the only part of the room that does."""
