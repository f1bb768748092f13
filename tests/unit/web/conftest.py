from collections.abc import Iterator

import pytest
from pulsar_sidecar.features.delayed_messages.results import CancelStatus

from tests.fakes.rest_api import FakeBrowser
from tests.unit.web.answers import deletion_status, watch_status

DELAYED = CancelStatus(
    enabled=True, asserting=True, open_cancellations=3, log_read=True, last_error=None, last_error_at_ms=None
)


@pytest.fixture
def browser() -> Iterator[FakeBrowser]:
    """Without authentication, before a cluster in which nothing is wrong."""
    found = FakeBrowser()
    found.api.answers |= {
        "GET /admin/v2/ledger-deletion/status": deletion_status(),
        "GET /admin/v2/ledger-deletion/watch": watch_status(),
        "GET /admin/v2/delayed-delivery/status": DELAYED,
        "GET /admin/v2/audits": (405, {"reason": "set auditsDirectory"}),
    }
    yield found
    found.runner.close()
