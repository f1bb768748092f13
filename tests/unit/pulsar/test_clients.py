"""The client's own log lines: through a pipe, without the flood."""

import logging
import subprocess
import sys
from pathlib import Path

import pulsar
import pytest
from pulsar_sidecar.adapters.pulsar_client import clients
from pulsar_sidecar.adapters.pulsar_client.client_log import ClientLog, RepetitionFilter
from pulsar_sidecar.adapters.pulsar_client.clients import open_client
from pulsar_sidecar.model.errors import InvalidInputError


def record(line: str, created: float) -> logging.LogRecord:
    made = logging.LogRecord("client", logging.ERROR, "", 0, line, (), None)
    made.created = created
    return made


def test_a_line_is_repeated_once_in_a_while() -> None:
    lines = RepetitionFilter()
    shown = [lines.filter(record("down", 1000 + second)) for second in range(61)]
    assert [second for second, through in enumerate(shown) if through] == [0, 30, 60]


def test_other_lines_come_through_and_memory_is_bounded() -> None:
    lines = RepetitionFilter()
    assert all(lines.filter(record(f"line {number}", 1000)) for number in range(5000))


@pytest.mark.parametrize("url", ["", "nonsense", "ftp://broker:21", "pulsar://"])
def test_an_unusable_service_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidInputError, match="pulsar://host:port"):
        open_client(url)


@pytest.fixture
def client_log() -> ClientLog:
    return ClientLog(logging.getLogger("test.client"))


def written(client_log: ClientLog, text: str) -> None:
    with Path(client_log.client_logger().log_file).open("a") as pipe:
        pipe.write(text)
    client_log.drain()


@pytest.mark.parametrize(
    ("line", "level", "message"),
    [
        ("2026-11-26 22:02:07.673 ERROR [1404] ClientImpl:275 | a | b", "ERROR", "a | b"),
        ("2026-11-26 22:02:07.673 WARN  [1404] ClientConnection:9 | slow", "WARNING", "slow"),
        ("2026-11-26 22:02:07.673 INFO  [1404] ClientConnection:9 | up", "INFO", "up"),
        ("2026-11-26 22:02:07.673 FATAL [1404] ClientConnection:9 | gone", "WARNING", "gone"),
        ("the second line of a message, 100%s", "WARNING", "the second line of a message, 100%s"),
    ],
)
def test_a_line_of_the_pipe_reaches_the_log_with_its_level(
    client_log: ClientLog, caplog: pytest.LogCaptureFixture, line: str, level: str, message: str
) -> None:
    with caplog.at_level(logging.DEBUG, "test.client"):
        written(client_log, f"{line}\n")
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [(level, message)]


@pytest.mark.parametrize(
    ("level", "name"), [(logging.DEBUG, "Debug"), (logging.NOTSET, "Warn"), (logging.INFO, "Info"), (50, "Error")]
)
def test_the_client_leaves_out_what_the_logger_would(level: int, name: str) -> None:
    logger = logging.getLogger(f"test.client.{name}")
    logger.setLevel(level)
    assert ClientLog(logger).client_logger().log_level.name == name


_FAILING_PROGRAM = """
import logging
from contextlib import closing, suppress
import pulsar
from pulsar_sidecar.adapters.pulsar_client import clients
clients._OPERATION_TIMEOUT_SECONDS = 1
logging.basicConfig(format="%(name)s %(levelname)s %(message)s")
with closing(clients.open_client("pulsar://127.0.0.1:1")) as client, suppress(pulsar.exceptions.PulsarException):
    client.create_reader("t", pulsar.MessageId.earliest)
"""


def test_client_messages_are_logged_before_the_process_exits() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _FAILING_PROGRAM],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "pulsar_sidecar.adapters.pulsar_client ERROR" in ended.stderr
    assert "Connection refused" in ended.stderr


class ClosingWithItsProducer:
    """A client one of whose producers is closing already."""

    def close(self) -> None:
        raise pulsar.AlreadyClosed("Pulsar error: AlreadyClosed")


def test_a_client_that_does_not_close_in_order_fails_no_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clients, "open_client", lambda *_: ClosingWithItsProducer())
    with clients.opened_client("pulsar://127.0.0.1:1"):
        pass
    assert "closing the Pulsar client: AlreadyClosed" in caplog.text
