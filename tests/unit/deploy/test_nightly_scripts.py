"""The nightly audit's scripts: steps, and exit codes by their findings."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cluster.choosing import PROJECT
from tests.unit.deploy.charts import rendered

SPARK = PROJECT / "deploy" / "spark"
NIGHTLY = SPARK / "nightly.sh"

_FAKE_SIDECAR = """#!/bin/sh
echo "$*" >> "$CALLS"
while [ $# -gt 1 ]; do [ "$1" = --output ] && [ "$3" != --output ] && mkdir -p "$2" && echo '{}' > "$2/summary.json" \\
    && echo metric > "$2/metrics.prom" && chmod 0600 "$2/metrics.prom"; shift; done
case "$(tail -n 1 "$CALLS")" in
    "audit run"* | "--master "*) exit "${AUDIT_CODE:-0}" ;;
    "metadata dump"*) exit "${DUMP_CODE:-0}" ;;
    "ledgers list"*) exit "${LIST_CODE:-0}" ;;
    "audit prune"*) exit "${PRUNE_CODE:-0}" ;;
    "audit push"*) exit "${PUSH_CODE:-0}" ;;
esac
"""
"""Also a spark-submit, which creates the directory of its option --output."""


class Night:
    def __init__(self, directory: Path) -> None:
        self.audits = directory / "archive"
        self.calls = directory / "calls"
        self.metrics = directory / "metrics"
        self._bin = directory / "bin"
        self._bin.mkdir()
        for name in ("pulsar-sidecar", "spark-submit"):
            (self._bin / name).write_text(_FAKE_SIDECAR)
            (self._bin / name).chmod(0o755)

    def run(
        self, *arguments: str, command: Sequence[str] = ("/bin/sh", str(NIGHTLY)), **environment: str
    ) -> "subprocess.CompletedProcess[str]":
        self.calls.unlink(missing_ok=True)
        known = {
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            "CALLS": str(self.calls),
            "AUDIT_DIRECTORY": str(self.audits),
            "METADATA_STORE_URL": "zk:z1:2181,z2:2181/chroot",
        }
        return subprocess.run(
            [*command, *arguments], env=known | environment, capture_output=True, text=True, check=False
        )

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def night(tmp_path: Path) -> Night:
    return Night(tmp_path)


def test_a_night_reads_etcd_as_the_brokers_name_it(night: Night) -> None:
    assert night.run(METADATA_STORE_URL="etcd:http://e1:2379,http://e2:2379").returncode == 0
    assert night.called()[1].startswith("metadata dump --source etcd:http://e1:2379,http://e2:2379 --output")


def test_a_night_lists_dumps_audits_and_tidies_up(night: Night) -> None:
    ran = night.run(METRICS_DIRECTORY=str(night.metrics), AUDIT_OPTIONS="--min-age-hours 96")
    assert ran.returncode == 0, ran.stderr
    listed, dumped, audited, pruned = night.called()
    assert listed.startswith("ledgers list --metadata-store-url zk:z1:2181,z2:2181/chroot")
    assert dumped.startswith("metadata dump --source zk://z1:2181,z2:2181/chroot --output")
    assert audited.startswith("audit run --dump ")
    assert audited.endswith("--min-age-hours 96")
    assert "--previous" not in audited
    assert pruned == f"audit prune {night.audits} --keep 7 --older-than-days 30 --execute"
    assert [path.name for path in night.metrics.iterdir()] == ["pulsar_sidecar_audit.prom"]
    # An audit is its owner's alone, and the node exporter is another user.
    assert (night.metrics / "pulsar_sidecar_audit.prom").stat().st_mode & 0o777 == 0o644


def test_places_of_tiered_storage_are_listed_before_the_dump(night: Night) -> None:
    assert night.run(OFFLOAD_LOCATIONS="s3://a file:///b").returncode == 0
    _, offloaded, dumped, audited, _ = night.called()
    assert offloaded.startswith("offload list --metadata-store-url zk:z1:2181,z2:2181/chroot --location s3://a")
    assert "--location file:///b --output" in offloaded
    assert dumped.startswith("metadata dump")
    assert f"--offloaded {offloaded.rpartition(' ')[2]}" in audited


def test_the_audit_before_is_the_newest_complete_one(night: Night) -> None:
    for name in ("20200101T000000Z", "20200103T000000Z", "20200102T000000Z"):
        (night.audits / "audits" / name).mkdir(parents=True)
        (night.audits / "audits" / name / "summary.json").touch()
    (night.audits / "audits" / "20200104T000000Z").mkdir()
    night.run()
    assert night.called()[2].endswith(f"--previous {night.audits}/audits/20200103T000000Z")


@pytest.mark.parametrize("engine", ["embedded", "spark"])
@pytest.mark.parametrize("code", [0, 1, 2])
def test_the_exit_code_is_the_audits_after_tidying_up(night: Night, engine: str, code: int) -> None:
    ran = night.run(AUDIT_ENGINE=engine, AUDIT_CODE=str(code), METRICS_DIRECTORY=str(night.metrics))
    assert ran.returncode == code
    assert night.called()[-1].startswith("audit prune")
    assert night.called()[2].startswith("audit run" if engine == "embedded" else "--master local")
    assert (night.metrics / "pulsar_sidecar_audit.prom").is_file()


@pytest.mark.parametrize("engine", ["embedded", "spark"])
def test_options_that_the_audit_does_not_know_are_no_findings(night: Night, engine: str) -> None:
    assert night.run(AUDIT_ENGINE=engine, AUDIT_CODE="2", AUDIT_OPTIONS="--output").returncode == 1


@pytest.mark.parametrize("engine", ["embedded", "spark", "none"])
@pytest.mark.parametrize("code", ["1", "2"])
def test_failed_listing_or_dump_exits_with_1(night: Night, engine: str, code: str) -> None:
    assert night.run(AUDIT_ENGINE=engine, LIST_CODE=code).returncode == 1
    assert len(night.called()) == 1
    for source in ("", "zk://observer:2181"):
        assert night.run(AUDIT_ENGINE=engine, DUMP_CODE=code, DUMP_SOURCE=source).returncode == 1
        assert len(night.called()) == 2


def test_failed_pruning_exits_with_1(night: Night) -> None:
    assert night.run(PRUNE_CODE="2").returncode == 1


@pytest.mark.parametrize(("code", "seen"), [("0", 0), ("2", 0), ("1", 1)])
def test_the_cronjob_fails_where_no_audit_was_made(night: Night, code: str, seen: int) -> None:
    (cronjob,) = [each for each in rendered("beside-pulsar-chart") if each["kind"] == "CronJob"]
    (container,) = cronjob["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    command = [word.replace("/pulsar-sidecar/scripts", str(SPARK)) for word in container["command"]]
    assert night.run(command=command, AUDIT_CODE=code).returncode == seen
    assert night.run(command=command, LIST_CODE="2").returncode == 1
    assert night.run(command=command, DUMP_CODE="2").returncode == 1


GROUP = "http://pushgateway:9091/metrics/job/audit"


@pytest.mark.parametrize("engine", ["embedded", "spark"])
def test_metrics_are_pushed(night: Night, engine: str) -> None:
    assert night.run(AUDIT_ENGINE="none", PUSHGATEWAY_URL=GROUP).returncode == 0
    assert not any(call.startswith("audit push") for call in night.called())
    assert night.run(AUDIT_ENGINE=engine, AUDIT_CODE="2", PUSHGATEWAY_URL=GROUP).returncode == 2
    (audit,) = (night.audits / "audits").iterdir()
    assert night.called()[-2] == f"audit push {audit} --group-url {GROUP}"


def test_metrics_that_are_not_pushed_fail_the_night_after_tidying_up(night: Night) -> None:
    assert night.run(PUSHGATEWAY_URL=GROUP, PUSH_CODE="1", AUDIT_CODE="2").returncode == 1
    assert night.called()[-1].startswith("audit prune")


def test_inputs_alone_and_other_sources(night: Night) -> None:
    assert night.run(AUDIT_ENGINE="none", DUMP_SOURCE="zk://observer:2181").returncode == 0
    listed, dumped, pruned = night.called()
    assert "--source zk://observer:2181 --cursors-from zk:z1:2181,z2:2181/chroot" in dumped
    assert listed.startswith("ledgers list")
    assert pruned.startswith("audit prune")


def test_wrong_usage_calls_nothing(night: Night) -> None:
    for ran in (night.run("--what"), night.run(METADATA_STORE_URL=""), night.run(AUDIT_DIRECTORY="")):
        assert ran.returncode == 1
        assert night.called() == []
    assert night.run("--help").stdout.startswith("Usage: nightly.sh")


def test_submitting_passes_the_jobs_options_on(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    submit = tmp_path / "bin" / "spark-submit"
    submit.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    submit.chmod(0o755)
    job, wheel = tmp_path / "orphan_ledgers" / "job.py", tmp_path / "sidecar.whl"
    job.parent.mkdir()
    job.touch()
    wheel.touch()
    environment = {
        "PATH": os.environ["PATH"], "SPARK_HOME": str(tmp_path), "SIDECAR_JOB": str(job),
        "SIDECAR_WHEEL": str(wheel), "SPARK_SUBMIT_OPTIONS": "--conf a=b",
    }  # fmt: skip
    script = str(SPARK / "submit.sh")
    ran = subprocess.run(
        ["/bin/sh", script, "--dump", "with space"], env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines() == [
        "--master", "local[*]", "--name", "pulsar-sidecar-orphan_ledgers",
        "--driver-java-options", "-XX:TieredStopAtLevel=1", "--driver-memory", "3g", "--conf", "a=b", "--py-files",
        str(wheel), str(job), "--dump", "with space",
    ]  # fmt: skip
    missing = subprocess.run(
        ["/bin/sh", script, "--dump", "d"], env=environment | {"SIDECAR_WHEEL": "/nowhere"}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert (missing.returncode, "no wheel" in missing.stderr) == (1, True)
    helped = subprocess.run(["/bin/sh", script, "--help"], capture_output=True, text=True, check=True)
    assert helped.stdout.startswith("Usage: submit.sh")
