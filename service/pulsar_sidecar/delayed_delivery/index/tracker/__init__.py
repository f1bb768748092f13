"""PIP-195's tracker of delayed messages: the same buckets, segments and order as a broker's."""
