"""The nightly audit: its manifests follow their schemas, its scripts do what they say, its alerts name real metrics."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from service.audit.metrics_text import metrics_text
from tests.cluster.choosing import PROJECT
from tests.unit.audit.findings import orphan, summary

SPARK = PROJECT / "deploy" / "spark"
RULES = PROJECT / "deploy" / "prometheus" / "audit.rules.yml"
SCHEMAS = Path(__file__).parent / "schemas"
MANIFESTS = ("cronjob.yaml", "scheduled-spark-application.yaml", "volume.yaml")
NIGHTLY = SPARK / "nightly.sh"

_FAKE_SIDECAR = """#!/bin/sh
echo "$*" >> "$CALLS"
while [ $# -gt 1 ]; do [ "$1" = --output ] && [ "$3" != --output ] && mkdir -p "$2" && echo '{}' > "$2/summary.json" \\
    && echo metric > "$2/metrics.prom"; shift; done
case "$(tail -n 1 "$CALLS")" in
    "audit run"*) exit "${AUDIT_CODE:-0}" ;;
    "metadata dump"*) exit "${DUMP_CODE:-0}" ;;
esac
"""


DOCUMENTS = [document for name in MANIFESTS for document in YAML(typ="safe").load_all(SPARK / name)]
KINDS = [f"{document['kind']}-{document['metadata']['name']}" for document in DOCUMENTS]


def schema_errors(document: Mapping[str, Any]) -> list[str]:
    schema = json.loads((SCHEMAS / f"{document['kind'].lower()}.json").read_text())
    return [error.message for error in Draft202012Validator(schema).iter_errors(document)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=KINDS)
def test_manifests_follow_their_schemas(document: Mapping[str, Any]) -> None:
    assert schema_errors(document) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=KINDS)
def test_the_schemas_would_notice_a_misspelt_name(document: dict[str, Any]) -> None:
    (error,) = schema_errors(document | {"spec": {**document["spec"], "schedul": "x"}})
    assert "'schedul' was unexpected" in error


@pytest.mark.parametrize("document", [each for each in DOCUMENTS if each["kind"] != "PersistentVolumeClaim"])
def test_volumes_and_scripts_that_are_mounted_exist(document: dict[str, Any]) -> None:
    kustomization = YAML(typ="safe").load(SPARK / "kustomization.yaml")
    (generated,) = kustomization["configMapGenerator"]
    assert all((SPARK / name).is_file() for name in (*generated["files"], *kustomization["resources"]))
    text = json.dumps(document)
    assert f'"name": "{generated["name"]}"' in text
    for script in re.findall(r"/scripts/([\w.]+)", text):
        assert script in generated["files"]
    (claim,) = set(re.findall(r'"claimName": "([^"]+)"', text))
    assert claim == YAML(typ="safe").load(SPARK / "volume.yaml")["metadata"]["name"]


def test_nothing_runs_as_root_or_may_become_it() -> None:
    for document in DOCUMENTS:
        if document["kind"] == "CronJob":
            pod = document["spec"]["jobTemplate"]["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"]
            assert pod["automountServiceAccountToken"] is False
            for container in pod["containers"]:
                assert container["securityContext"]["allowPrivilegeEscalation"] is False


# --- scripts -------------------------------------------------------------------------------------------------------


class Night:
    def __init__(self, directory: Path) -> None:
        self.audits = directory / "archive"
        self.calls = directory / "calls"
        self.metrics = directory / "metrics"
        self._bin = directory / "bin"
        self._bin.mkdir()
        (self._bin / "pulsar-sidecar").write_text(_FAKE_SIDECAR)
        (self._bin / "pulsar-sidecar").chmod(0o755)

    def run(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        self.calls.unlink(missing_ok=True)
        known = {
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            "CALLS": str(self.calls),
            "AUDIT_DIRECTORY": str(self.audits),
            "METADATA_STORE_URL": "zk:z1:2181,z2:2181/chroot",
        }
        return subprocess.run(
            ["/bin/sh", str(NIGHTLY), *arguments], env=known | environment, capture_output=True, text=True, check=False
        )

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def night(tmp_path: Path) -> Night:
    return Night(tmp_path)


def test_a_night_lists_dumps_audits_and_tidies_up(night: Night) -> None:
    ran = night.run(METRICS_DIRECTORY=str(night.metrics), AUDIT_OPTIONS="--min-age-hours 96")
    assert ran.returncode == 0, ran.stderr
    listed, dumped, audited, pruned = night.called()
    assert listed.startswith("ledgers list --source metadata --metadata-store-url zk:z1:2181,z2:2181/chroot")
    assert dumped.startswith("metadata dump --source zk://z1:2181,z2:2181/chroot --output")
    assert audited.startswith("audit run --dump ")
    assert audited.endswith("--min-age-hours 96")
    assert "--previous" not in audited
    assert pruned == f"audit prune {night.audits} --keep 7 --older-than-days 30 --execute"
    assert [path.name for path in night.metrics.iterdir()] == ["pulsar_sidecar_audit.prom"]


def test_the_audit_before_is_the_newest_complete_one(night: Night) -> None:
    for name in ("20200101T000000Z", "20200103T000000Z", "20200102T000000Z"):
        (night.audits / "audits" / name).mkdir(parents=True)
        (night.audits / "audits" / name / "summary.json").touch()
    (night.audits / "audits" / "20200104T000000Z").mkdir()
    night.run()
    assert night.called()[2].endswith(f"--previous {night.audits}/audits/20200103T000000Z")


def test_findings_are_told_by_the_exit_code_after_tidying_up(night: Night) -> None:
    assert night.run(AUDIT_CODE="2").returncode == 2
    assert night.called()[-1].startswith("audit prune")


def test_options_that_the_audit_does_not_know_are_no_findings(night: Night) -> None:
    assert night.run(AUDIT_CODE="2", AUDIT_OPTIONS="--output").returncode == 1


def test_a_dump_that_fails_ends_the_night(night: Night) -> None:
    assert night.run(DUMP_CODE="1").returncode == 1
    assert len(night.called()) == 2


def test_inputs_alone_and_other_sources(night: Night) -> None:
    assert night.run(AUDIT_ENGINE="none", DUMP_SOURCE="zk-admin:http://z1:8080").returncode == 0
    listed, dumped, pruned = night.called()
    assert "--source zk-admin:http://z1:8080 --cursors-from zk:z1:2181,z2:2181/chroot" in dumped
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
    for name in ("job.py", "sidecar.whl"):
        (tmp_path / name).touch()
    environment = {
        "PATH": os.environ["PATH"], "SPARK_HOME": str(tmp_path), "SIDECAR_JOB": str(tmp_path / "job.py"),
        "SIDECAR_WHEEL": str(tmp_path / "sidecar.whl"), "SPARK_SUBMIT_OPTIONS": "--conf a=b",
    }  # fmt: skip
    script = str(SPARK / "submit.sh")
    ran = subprocess.run(
        ["/bin/sh", script, "--dump", "with space"], env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines() == [
        "--master", "local[*]", "--name", "pulsar-sidecar-audit",
        "--driver-java-options", "-XX:TieredStopAtLevel=1", "--driver-memory", "3g", "--conf", "a=b", "--py-files",
        str(tmp_path / "sidecar.whl"), str(tmp_path / "job.py"), "--dump", "with space",
    ]  # fmt: skip
    missing = subprocess.run(
        ["/bin/sh", script, "--dump", "d"], env=environment | {"SIDECAR_WHEEL": "/nowhere"}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert (missing.returncode, "no wheel" in missing.stderr) == (1, True)
    helped = subprocess.run(["/bin/sh", script, "--help"], capture_output=True, text=True, check=True)
    assert helped.stdout.startswith("Usage: submit.sh")


def chosen(directory: Path) -> "subprocess.CompletedProcess[str]":
    program = (
        "import runpy, sys; print(runpy.run_path(sys.argv[1])['arguments'](__import__('pathlib').Path(sys.argv[2])))"
    )
    return subprocess.run(
        [sys.executable, "-c", program, str(SPARK / "nightly_job.py"), str(directory)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_drivers_program_chooses_the_newest_inputs(tmp_path: Path) -> None:
    assert "no dump with a listing" in chosen(tmp_path).stderr
    for place in ("dumps/1", "listings/1", "dumps/2", "listings/2", "dumps/3"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "manifest.json").touch()
    first = (
        f"['--dump', '{tmp_path}/dumps/2', '--listing', '{tmp_path}/listings/2', '--output', '{tmp_path}/audits/2']\n"
    )
    assert chosen(tmp_path).stdout == first
    (tmp_path / "audits" / "1").mkdir(parents=True)
    (tmp_path / "audits" / "1" / "summary.json").touch()
    assert chosen(tmp_path).stdout == first.replace("]\n", f", '--previous', '{tmp_path}/audits/1']\n")
    (tmp_path / "audits" / "2").mkdir()
    (tmp_path / "audits" / "2" / "summary.json").touch()
    assert chosen(tmp_path).stdout == "None\n"


# --- alerts --------------------------------------------------------------------------------------------------------


def test_alerts_are_about_metrics_that_audits_leave() -> None:
    left = {family.name for family in text_string_to_metric_families(metrics_text(summary([orphan(1)])))}
    (group,) = YAML(typ="safe").load(RULES)["groups"]
    for rule in group["rules"]:
        (named,) = set(re.findall(r"pulsar_sidecar_audit_\w+", rule["expr"]))
        assert named in left
        assert rule["annotations"]["summary"]
    assert any("time() -" in rule["expr"] for rule in group["rules"])
