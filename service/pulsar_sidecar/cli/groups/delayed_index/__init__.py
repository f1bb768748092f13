"""``pulsar-sidecar delayed-index``: each module adds its commands to the group."""

from pulsar_sidecar.cli.groups.delayed_index import checks, planning
from pulsar_sidecar.cli.groups.delayed_index.show import app

__all__ = ["app", "checks", "planning"]
