from collections.abc import Iterator

import pytest

from tests.fakes.rest_door import FakeBrowser
from tests.unit.web.answers import deletion_status, watch_status

DELAYED = {
    "enabled": True,
    "asserting": True,
    "openCancellations": 3,
    "logRead": True,
    "lastError": None,
    "lastErrorAtMs": None,
}


@pytest.fixture
def browser() -> Iterator[FakeBrowser]:
    """Without authentication, before a cluster in which nothing is wrong."""
    found = FakeBrowser()
    found.door.answers |= {
        "GET /admin/v2/ledger-deletion/status": deletion_status(),
        "GET /admin/v2/ledger-deletion/watch": watch_status(),
        "GET /admin/v2/delayed-delivery/status": DELAYED,
        "GET /admin/v2/audits": (405, {"reason": "set auditsDirectory"}),
    }
    yield found
    found.runner.close()
