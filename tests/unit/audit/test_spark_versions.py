"""Spark's jobs start on the versions that they were tried on, and name these on any other."""

import pytest
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.reports.documents import EXIT_ERROR

from pyspark_jobs.running import sessions


@pytest.mark.parametrize("version", ["4.0.1", "4.1.4", "4.2.0", "4.3.0", "4.3.1.dev0"])
def test_a_version_that_was_tried_is_accepted(version: str) -> None:
    sessions.check_spark_version(version)


@pytest.mark.parametrize("version", ["3.5.7", "4.4.0", "5.0.0", "4.30.0", "4", ""])
def test_any_other_is_refused_with_those_that_were_tried(version: str) -> None:
    with pytest.raises(InvalidInputError, match=r"use 4\.0, 4\.1, 4\.2, 4\.3, or pulsar-sidecar audit run"):
        sessions.check_spark_version(version)


def test_a_job_on_an_old_spark_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sessions, "spark_version", "3.5.7")
    assert sessions.run_job("audit", lambda _: pytest.fail("Spark was started")) == EXIT_ERROR
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: Spark 3.5.7 is not supported; use 4.0")
