"""``pulsar-sidecar deduplication``, policies of topics and namespaces, and, imported when it is called, ``publish``."""

from pulsar_sidecar.cli.groups.deduplication import duplicates, health, policies, verifying
from pulsar_sidecar.cli.groups.deduplication.show import app

__all__ = ["app", "duplicates", "health", "policies", "verifying"]
