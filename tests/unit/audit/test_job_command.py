"""The Spark job's command line, with Spark and its audit replaced: options become a policy, a summary an exit code."""

from pathlib import Path
from typing import Any

import pulsar_sidecar
import pytest
from msgspec.structs import replace
from pulsar_sidecar.features.audit.requests import AuditPolicy
from pulsar_sidecar.features.audit.results.summaries import AuditSummary, GuardResult
from pulsar_sidecar.model.errors import InvalidInputError, SidecarError, TemporaryError

from pyspark_jobs.orphan_ledgers import job
from pyspark_jobs.running import sessions
from tests.unit.audit.findings import orphan, summary
from tests.unit.audit.options import EVERY_OPTION, PLACES, POLICY_OF_EVERY_OPTION

FAILED = GuardResult("share-of-ledgers", False, "40 %", "10 %", "too many")


class Context:
    """Files for executors, by name and content."""

    def __init__(self) -> None:
        self.sent: dict[str, bytes] = {}

    def addPyFile(self, path: str) -> None:  # noqa: N802 - Spark's name
        self.sent[Path(path).name] = Path(path).read_bytes()


class Spark:
    def __init__(self) -> None:
        self.stopped = 0
        self.sparkContext = Context()

    def stop(self) -> None:
        self.stopped += 1


class Job:
    """`job.run` without Spark: records its options and returns a result."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.answer: AuditSummary | SidecarError = summary(())
        self.asked: list[tuple[Any, ...]] = []
        self.spark = Spark()
        patch.setattr(sessions, "session", lambda _: self.spark)
        patch.setattr(job, "run", self._run)

    def _run(self, spark: Spark, *asked: Any) -> AuditSummary:
        assert spark is self.spark
        self.asked.append(asked)
        if isinstance(self.answer, SidecarError):
            raise self.answer
        return self.answer


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("PYSPARK_PYTHON", "python")
    return Job(monkeypatch)


def test_the_defaults_are_those_of_the_embedded_engine(fake: Job) -> None:
    assert job.main(PLACES) == 0
    assert fake.asked == [("d", "l", "o", None, AuditPolicy(), False, None)]
    assert (fake.spark.stopped, fake.spark.sparkContext.sent) == (1, {})


def test_a_wheel_is_sent_under_a_name_that_executors_import_from(
    fake: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheel = tmp_path / "pulsar_sidecar-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"packed")
    monkeypatch.setattr(pulsar_sidecar, "__file__", str(wheel / "pulsar_sidecar" / "__init__.py"))
    job.main(PLACES)
    assert fake.spark.sparkContext.sent == {"pulsar_sidecar-0.1.0-py3-none-any.zip": b"packed"}


def test_every_option(fake: Job) -> None:
    job.main(EVERY_OPTION)
    assert fake.asked == [("d", "l", "o", "p", POLICY_OF_EVERY_OPTION, True, "t")]


@pytest.mark.parametrize(
    ("answer", "code", "verdict"),
    [
        (summary(()), 0, "clean"),
        (summary([orphan(1)]), 2, "plan"),
        (replace(summary([orphan(1)], guards=(FAILED,)), plan=None), 1, "stopped"),
    ],
    ids=["clean", "plan", "stopped"],
)
def test_the_exit_code_and_the_verdict(
    fake: Job, capsys: pytest.CaptureFixture[str], answer: AuditSummary, code: int, verdict: str
) -> None:
    fake.answer = answer
    assert job.main(PLACES) == code
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{verdict}: ")
    assert second.startswith("next: ")


def test_an_error_ends_with_1_and_nothing_on_standard_output(fake: Job, capsys: pytest.CaptureFixture[str]) -> None:
    fake.answer = TemporaryError("the disk is full")
    assert job.main(PLACES) == 1
    assert tuple(capsys.readouterr()) == ("", "error: the disk is full\n")
    assert fake.spark.stopped == 1


@pytest.mark.parametrize(("wrong", "message"), [(PLACES[:-2], "--output"), ((*PLACES, "--max-share", "much"), "--max")])
def test_wrong_usage_ends_with_1_because_2_means_that_there_are_findings(
    fake: Job, capsys: pytest.CaptureFixture[str], wrong: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        job.main(wrong)
    assert ended.value.code == 1
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("usage: job.py")
    assert message in streams.err
    assert fake.asked == []


def test_help_lists_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        job.main(["--help"])
    assert ended.value.code == 0
    assert "0 clean, 2 findings, 1 an error, wrong usage" in " ".join(capsys.readouterr().out.split())


# --- Spark's version -----------------------------------------------------------------------------------------------


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
    assert sessions.run_job("audit", lambda _: pytest.fail("Spark was started")) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: Spark 3.5.7 is not supported; use 4.0")
