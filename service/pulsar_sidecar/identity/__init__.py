"""Who a client of Pulsar's is: the sidecar to brokers, and a command to the sidecar."""
