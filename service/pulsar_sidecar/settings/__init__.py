"""The settings: their fields, and the sources that they are read from."""
