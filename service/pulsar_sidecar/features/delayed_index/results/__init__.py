"""Results of the feature; times are in milliseconds since the epoch."""
