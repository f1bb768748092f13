"""Log of the brokers' version of Pulsar: once, by its distance from the tested versions."""

from typing import Any

import pytest
from pulsar_sidecar.bootstrap.broker_versions import BrokerVersions
from pulsar_sidecar.local_cluster.spec import DEFAULT_VERSION
from pulsar_sidecar.model.errors import NotFoundError
from pulsar_sidecar.model.pulsar_versions import TESTED_VERSIONS
from structlog.testing import capture_logs

from tests.fakes.admin_answers import FakeAdminRest
from tests.matrix.__main__ import TABLE

PATH = "/admin/v2/brokers/version"


def logged(*answers: object) -> list[dict[str, Any]]:
    """Return the log of repeated checks; None is an unavailable broker."""
    rest = FakeAdminRest()
    versions = BrokerVersions(rest)  # type: ignore[arg-type]
    with capture_logs() as lines:
        for answer in answers:
            rest.answers = {} if answer is None else {PATH: answer}
            try:
                versions.ask()
            except NotFoundError:
                assert answer is None
    return [dict(line) for line in lines]


@pytest.mark.parametrize("version", TESTED_VERSIONS)
def test_a_tested_version_is_named(version: str) -> None:
    (line,) = logged(version)
    assert (line["log_level"], line["pulsar"]) == ("info", version)
    assert line["event"] == "Pulsar version tested"


@pytest.mark.parametrize(
    ("version", "tested"),
    [("4.0.9", ("4.0.6", "4.0.8")), ("4.2.5-SNAPSHOT", ("4.2.4",)), ("3.3.6.1", ("3.3.6",))],
)
def test_a_patch_version_of_a_tested_line_is_named_with_those_that_were_tested(
    version: str, tested: tuple[str, ...]
) -> None:
    (line,) = logged(version)
    assert (line["log_level"], line["pulsar"], line["tested"]) == ("info", version, tested)
    assert "not tested" in line["event"]


@pytest.mark.parametrize("version", ["2.10.6", "4.1.0", "4.3.0", "4.20.4", "5.0.0-M1", "unknown"])
def test_a_version_of_another_line_is_a_warning_with_all_that_were_tested(version: str) -> None:
    (line,) = logged(version)
    assert (line["log_level"], line["pulsar"], line["tested"]) == ("warning", version, TESTED_VERSIONS)
    assert "not tested" in line["event"]


def test_a_version_is_logged_once_and_another_one_when_brokers_are_upgraded() -> None:
    assert [line["pulsar"] for line in logged("4.0.8", "4.0.8", "4.1.0", "4.0.8", "4.1.0")] == ["4.0.8", "4.1.0"]


@pytest.mark.parametrize("answer", [None, "", {}, 4.2])
def test_a_version_that_cannot_be_read_is_logged_once_and_read_later(answer: object) -> None:
    unread, read = logged(answer, answer, "4.0.8")
    assert (unread["log_level"], unread["tested"]) == ("warning", TESTED_VERSIONS)
    assert "failed" in unread["event"]
    assert read["pulsar"] == "4.0.8"
    assert len(logged("4.0.8", answer)) == 1


def test_tested_versions_are_those_of_the_readme() -> None:
    assert tuple(row.version for row in TABLE.rows_of(TABLE.document.read_text())) == TESTED_VERSIONS
    assert DEFAULT_VERSION in TESTED_VERSIONS
