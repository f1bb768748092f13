"""``pulsar-sidecar delayed-index``: each module adds its commands to the group."""

from pulsar_sidecar.features.delayed_index.cli import checks, planning
from pulsar_sidecar.features.delayed_index.cli.show import app

__all__ = ["app", "checks", "planning"]
