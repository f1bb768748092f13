"""``pulsar-sidecar deduplication``: what brokers remember of producers (PIP-6), and whether they do."""

from pulsar_sidecar.cli.command_groups import new_group

app = new_group("deduplication", "Show whether brokers deduplicate, and what that costs (PIP-6).")
