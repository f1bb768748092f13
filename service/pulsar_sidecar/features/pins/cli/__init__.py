"""Commands of pins and of the retention sweep."""
