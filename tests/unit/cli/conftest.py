from collections.abc import Iterator

import pytest
import structlog

from tests.fakes.deletion_service import FakeDeletionService
from tests.unit.api.serving import Served, served
from tests.unit.cli.running import Terminal


@pytest.fixture(autouse=True)
def _server_log_elsewhere() -> Iterator[None]:
    """The server runs in this process; its log must not mix with the command's output."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.reset_defaults()


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    return Terminal(capsys, monkeypatch)


@pytest.fixture
def service() -> FakeDeletionService:
    return FakeDeletionService()


@pytest.fixture
def server(service: FakeDeletionService, terminal: Terminal) -> Iterator[Served]:
    with served(service) as server:
        terminal.set("PULSAR_SIDECAR_ADMIN_URL", server.url)
        yield server
