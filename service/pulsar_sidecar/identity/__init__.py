"""Identities of Pulsar's clients: of the sidecar to brokers, and of a command to the sidecar."""
