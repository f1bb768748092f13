"""The client's own log lines, without the flood."""

import logging

import pytest
from pulsar_sidecar.adapters.pulsar.client.clients import RepetitionFilter, open_client
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
