from collections.abc import Iterator

import pytest
import structlog
from structlog.typing import EventDict

from tests.fakes.deletion_service import FakeDeletionService
from tests.unit.cli.running import Terminal
from tests.unit.server.serving import Served, served


def _drop(_logger: object, _method: str, _event: EventDict) -> EventDict:
    raise structlog.DropEvent


@pytest.fixture(scope="module", autouse=True)
def _server_log_elsewhere() -> Iterator[None]:
    """The server runs in this process; its log must not mix with the command's output."""
    structlog.configure(processors=[_drop], wrapper_class=structlog.BoundLogger)
    yield
    structlog.reset_defaults()


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    return Terminal(capsys, monkeypatch)


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
def server(_shared: tuple[FakeDeletionService, Served], service: FakeDeletionService, terminal: Terminal) -> Served:
    del service  # reset before the server is used
    terminal.set("PULSAR_SIDECAR_ADMIN_URL", _shared[1].url)
    return _shared[1]


@pytest.fixture
def shell(terminal: Terminal, server: Served) -> Terminal:
    """The terminal of a user of ``server``, which a module may replace."""
    terminal.set("PULSAR_SIDECAR_ADMIN_URL", server.url)
    return terminal
