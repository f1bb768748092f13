"""Spark job of pulsar-sidecar, which imports only pure modules of the service."""
