"""Spark jobs of pulsar-sidecar; they see nouns, wire formats and ownership rules of the service and nothing else."""
