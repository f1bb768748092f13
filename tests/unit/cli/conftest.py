import pytest

from tests.fakes.deletion_service import FakeDeletionService
from tests.unit.cli.running import Terminal
from tests.unit.server.conftest import _server_log_elsewhere, _shared, service
from tests.unit.server.serving import Served

__all__ = ["_server_log_elsewhere", "_shared", "service"]


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    return Terminal(capsys, monkeypatch)


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
