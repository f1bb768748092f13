"""The Pulsar client library."""
