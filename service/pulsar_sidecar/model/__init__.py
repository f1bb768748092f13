"""Types that every feature shares; nothing here waits, logs or talks to a network."""
