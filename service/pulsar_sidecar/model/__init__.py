"""The nouns every room shares; nothing here waits, logs or talks to a network."""
