import logging
from collections.abc import Iterator

import pytest
import structlog
from pulsar_sidecar.server import gate as gates
from structlog.typing import EventDict

from tests.fakes.deletion_service import FakeDeletionService
from tests.unit.cli.running import Terminal
from tests.unit.server.serving import Served, served


def _drop(_logger: object, _method: str, _event: EventDict) -> EventDict:
    raise structlog.DropEvent


@pytest.fixture(scope="module", autouse=True)
def _server_log_elsewhere() -> Iterator[None]:
    """The server runs in this process; its log is not what a failing test wants to show."""
    structlog.configure(processors=[_drop], wrapper_class=structlog.BoundLogger)
    gate = logging.getLogger(gates.__name__)
    gate.setLevel(logging.DEBUG)
    yield
    gate.setLevel(logging.NOTSET)
    structlog.reset_defaults()


@pytest.fixture(scope="module")
def _shared() -> Iterator[tuple[FakeDeletionService, Served]]:
    service = FakeDeletionService()
    with served(service) as server:
        yield service, server


@pytest.fixture
def service(_shared: tuple[FakeDeletionService, Served]) -> FakeDeletionService:
    _shared[0].reset()
    return _shared[0]


@pytest.fixture
def server(_shared: tuple[FakeDeletionService, Served], service: FakeDeletionService) -> Served:
    del service  # reset before the server is used
    return _shared[1]


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, server: Served) -> Terminal:
    """The terminal of a user of ``server``, which a module may replace."""
    terminal = Terminal(capsys, monkeypatch)
    terminal.set("PULSAR_SIDECAR_ADMIN_URL", server.url)
    return terminal
