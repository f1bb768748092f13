"""A real Pulsar cluster on one machine, from the official distribution."""
