"""Spark jobs of pulsar-sidecar, which import only pure modules of the service."""
