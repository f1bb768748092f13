"""pulsar-sidecar: operator's tools that run beside unmodified Apache Pulsar brokers."""
