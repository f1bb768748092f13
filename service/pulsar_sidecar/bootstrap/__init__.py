"""The composition: the only package that names concrete adapters and joins them to the rooms."""
