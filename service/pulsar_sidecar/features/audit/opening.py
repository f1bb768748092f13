"""Audits that commands and jobs have written to a directory. Arrow is imported only where they are served."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from pulsar_sidecar.adapters.pulsar_client.clients import opened_client
from pulsar_sidecar.bootstrap.cluster_access import ClusterAccess
from pulsar_sidecar.bootstrap.feature import Feature, FeatureEntry
from pulsar_sidecar.features.audit.http import plans_router, router
from pulsar_sidecar.features.audit.plan_progress import unfinished_plans
from pulsar_sidecar.model.errors import DisabledError

NO_DIRECTORY: Final = (
    "this sidecar serves no audits; set auditsDirectory to the directory to which they are written "
    "(pulsar-sidecar audit run --output)"
)
NO_ARROW: Final = (
    "this sidecar is installed without Apache Arrow, which reads audits; pip install 'pulsar-sidecar[audit]', or use "
    "the image pulsar-sidecar-audit"
)


class NoAudits:
    """`audit.http.AuditReview` where the sidecar serves no audits: every call raises `DisabledError`."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> Any:
        raise DisabledError(self._why)


def open_feature(cluster: ClusterAccess) -> Feature:
    """Open the feature, which reads audits on request; only an approved plan starts a thread."""
    plans = partial(unfinished_plans, cluster.store)
    directory = cluster.settings.audits_directory
    if directory is None:
        return Feature([NoAudits(NO_DIRECTORY), plans])
    if find_spec("pyarrow") is None:
        return Feature([NoAudits(NO_ARROW), plans])
    reviews, close = _reviews_of(cluster, directory)
    return Feature([reviews, plans], close=close)


def _reviews_of(cluster: ClusterAccess, directory: Path) -> tuple[Any, Callable[[], None]]:
    with_tables = import_module("pulsar_sidecar.bootstrap.audit_service")
    brokers = partial(opened_client, cluster.settings.broker_service_url, cluster.credentials, cluster.tls)
    send_application = import_module("pulsar_sidecar.bootstrap.audit_review").send_application
    send = partial(send_application, cluster.store, brokers, cluster.clock)
    sending = with_tables.PlanSending(cluster.store, cluster.clock, cluster.threads(1, "audit-apply"), send)
    is_enabled = cluster.settings.topic_two_phase_deletion_enabled
    return with_tables.AuditReviews(directory, sending, deletes=is_enabled), sending.close


ENTRY = FeatureEntry([router, plans_router], open_feature)
