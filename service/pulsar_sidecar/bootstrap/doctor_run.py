"""The composition root of the command ``doctor``."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from pulsar_sidecar.bootstrap.app import warnings_of
from pulsar_sidecar.bootstrap.cluster_access import ClusterAccess
from pulsar_sidecar.bootstrap.doctor import examine_cluster
from pulsar_sidecar.features.doctor.findings import Finding
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.observability.logging import configure_logging
from pulsar_sidecar.settings.fields import load_settings


def run_doctor(flags: Mapping[str, str | None], config: Path | None) -> list[Finding]:
    """Examine the cluster with the settings that `serve` would have; raise `InvalidInputError` if one is wrong."""
    warnings: list[str] = []
    settings = load_settings(flags, os.environ, config, warnings.append)
    # The findings contain what adapters log.
    configure_logging("CRITICAL", "text")
    with ExitStack() as stack:
        cluster = ClusterAccess(settings, os.environ, SystemClock(), stack, None, settings.cluster_name or "")
        return examine_cluster(cluster, [*warnings, *warnings_of(settings)])
