"""The Pulsar client and the brokers' admin REST API; nothing else imports ``pulsar``."""
