"""What is logged of the brokers' version of Pulsar: once, by how near it is to those that were tried."""

from typing import Any

import pytest
from pulsar_sidecar.bootstrap.broker_versions import BrokerVersions
from pulsar_sidecar.local_cluster.spec import DEFAULT_VERSION
from pulsar_sidecar.model.errors import NotFoundError
from pulsar_sidecar.model.pulsar_versions import TRIED_VERSIONS
from structlog.testing import capture_logs

from tests.fakes.admin_answers import FakeAdminRest
from tests.matrix.__main__ import TABLE

PATH = "/admin/v2/brokers/version"


def logged(*answers: object) -> list[dict[str, Any]]:
    """What asking again and again logs; None is a broker that is away."""
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


@pytest.mark.parametrize("version", TRIED_VERSIONS)
def test_a_tried_version_is_named(version: str) -> None:
    (line,) = logged(version)
    assert (line["log_level"], line["pulsar"]) == ("info", version)
    assert "was tried on this version" in line["event"]


@pytest.mark.parametrize(
    ("version", "tried"),
    [("4.0.9", ("4.0.6", "4.0.8")), ("4.2.5-SNAPSHOT", ("4.2.4",)), ("3.3.6.1", ("3.3.6",))],
)
def test_a_patch_version_of_a_tried_line_is_named_with_those_that_were_tried(
    version: str, tried: tuple[str, ...]
) -> None:
    (line,) = logged(version)
    assert (line["log_level"], line["pulsar"], line["tried"]) == ("info", version, tried)
    assert "not tried" in line["event"]


@pytest.mark.parametrize("version", ["2.10.6", "4.1.0", "4.3.0", "4.20.4", "5.0.0-M1", "unknown"])
def test_a_version_of_another_line_is_a_warning_with_all_that_were_tried(version: str) -> None:
    (line,) = logged(version)
    assert (line["log_level"], line["pulsar"], line["tried"]) == ("warning", version, TRIED_VERSIONS)
    assert "not tried" in line["event"]


def test_a_version_is_logged_once_and_another_one_when_brokers_are_upgraded() -> None:
    assert [line["pulsar"] for line in logged("4.0.8", "4.0.8", "4.1.0", "4.0.8", "4.1.0")] == ["4.0.8", "4.1.0"]


@pytest.mark.parametrize("answer", [None, "", {}, 4.2])
def test_a_version_that_cannot_be_read_is_logged_once_and_read_later(answer: object) -> None:
    unread, read = logged(answer, answer, "4.0.8")
    assert (unread["log_level"], unread["tried"]) == ("warning", TRIED_VERSIONS)
    assert "could not be read" in unread["event"]
    assert read["pulsar"] == "4.0.8"
    assert len(logged("4.0.8", answer)) == 1


def test_what_was_tried_is_what_readme_has_counts_of() -> None:
    assert tuple(row.version for row in TABLE.rows_of(TABLE.document.read_text())) == TRIED_VERSIONS
    assert DEFAULT_VERSION in TRIED_VERSIONS
