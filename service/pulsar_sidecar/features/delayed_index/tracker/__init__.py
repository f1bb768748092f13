"""PIP-195's tracker of delayed messages, with the same buckets, segments and order as a broker's."""
