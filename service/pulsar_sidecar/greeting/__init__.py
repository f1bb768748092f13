"""A room that greets: it shows what a room touches."""
