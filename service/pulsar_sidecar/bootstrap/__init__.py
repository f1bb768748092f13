"""The composition root: the only package that connects concrete adapters to the features."""
