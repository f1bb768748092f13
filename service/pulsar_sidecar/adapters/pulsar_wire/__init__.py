"""Commands of Pulsar's binary protocol that the client library does not have."""
