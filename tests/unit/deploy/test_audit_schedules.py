"""The nightly audit on Kubernetes: manifests follow their schemas and fit together, alerts name real metrics."""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from tests.cluster.choosing import PROJECT

SPARK = PROJECT / "deploy" / "spark"
RULES = PROJECT / "deploy" / "prometheus" / "audit.rules.yml"
SCHEMAS = Path(__file__).parent / "schemas"
MANIFESTS = ("cronjob.yaml", "volume.yaml", "operator/scheduled-spark-application.yaml", "operator/volume.yaml")


def documents_of(directory: Path) -> list[dict[str, Any]]:
    names = [SPARK / name for name in MANIFESTS if (SPARK / name).parent == directory]
    return [document for name in names for document in YAML(typ="safe").load_all(name)]


OPERATOR = SPARK / "operator"
DOCUMENTS = [*documents_of(SPARK), *documents_of(OPERATOR)]
KINDS = [f"{number}-{document['kind']}" for number, document in enumerate(DOCUMENTS)]


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


@pytest.mark.parametrize("directory", [SPARK, OPERATOR], ids=["embedded", "operator"])
def test_each_directory_is_applied_as_it_is(directory: Path) -> None:
    kustomization = YAML(typ="safe").load(directory / "kustomization.yaml")
    manifests = {(SPARK / name).name for name in MANIFESTS if (SPARK / name).parent == directory}
    assert set(kustomization["resources"]) == manifests
    (claim,) = [each for each in documents_of(directory) if each["kind"] == "PersistentVolumeClaim"]
    text = json.dumps(documents_of(directory))
    assert set(re.findall(r'"claimName": "([^"]+)"', text)) == {claim["metadata"]["name"]}
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce" if directory == SPARK else "ReadWriteMany"]


def test_scripts_are_mounted_or_in_the_image() -> None:
    (generated,) = YAML(typ="safe").load(SPARK / "kustomization.yaml")["configMapGenerator"]
    copied = re.findall(r"^COPY --chmod=755 (.+) /scripts/$", (SPARK / "Dockerfile").read_text(), re.MULTILINE)
    for directory, files in ((SPARK, generated["files"]), (OPERATOR, copied[0].split())):
        text = json.dumps(documents_of(directory))
        used = set(re.findall(r"/scripts/([\w.]+)", text))
        assert used == set(files)
        assert all((SPARK / name).is_file() for name in files)
    assert json.dumps(documents_of(SPARK)).count(f'"name": "{generated["name"]}"') >= 2
    assert "configMap" not in json.dumps(documents_of(OPERATOR))


def test_images_are_the_ones_that_the_recipes_build() -> None:
    recipe = (SPARK / "Dockerfile").read_text()
    sidecar, spark = re.findall(r"^#   docker build .*--tag (\S+) ", recipe, re.MULTILINE)
    assert f"--tag {sidecar} ." in (PROJECT / "deploy" / "Dockerfile").read_text()
    assert f"ARG SIDECAR_IMAGE={sidecar}\n" in recipe
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    for directory, image in ((SPARK, sidecar), (OPERATOR, spark)):
        assert image.endswith(f":{version}")
        assert set(re.findall(r'"image": "([^"]+)"', json.dumps(documents_of(directory)))) == {image}
    (application,) = [each for each in DOCUMENTS if each["kind"] == "ScheduledSparkApplication"]
    assert f"ARG SPARK_VERSION={application['spec']['template']['sparkVersion']}\n" in recipe
    found: Any = application
    (fields,) = YAML(typ="safe").load(OPERATOR / "images.yaml")["images"]
    for name in fields["path"].split("/"):
        found = found[name]
    assert (fields["kind"], found) == (application["kind"], spark)


def test_the_spark_image_installs_what_was_locked_for_the_tests() -> None:
    def locked(path: Path) -> set[str]:
        return set(re.split(r"\n(?=\S)", path.read_text().rstrip("\n")))

    here, tested = locked(SPARK / "requirements.lock"), locked(PROJECT / "deploy" / "requirements-dev.lock")
    assert any(each.startswith("pandas==") for each in here)
    assert here <= tested


def test_nothing_runs_as_root_or_may_become_it() -> None:
    for document in DOCUMENTS:
        if document["kind"] == "CronJob":
            pod = document["spec"]["jobTemplate"]["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"]
            assert pod["automountServiceAccountToken"] is False
            for container in pod["containers"]:
                assert container["securityContext"]["allowPrivilegeEscalation"] is False
        if document["kind"] == "ScheduledSparkApplication":
            for role in ("driver", "executor"):
                pod = document["spec"]["template"][role]
                assert pod["podSecurityContext"]["runAsNonRoot"]
                assert pod["securityContext"]["allowPrivilegeEscalation"] is False


def test_both_schedules_push_their_metrics() -> None:
    (night,) = [each for each in documents_of(SPARK) if each["kind"] == "CronJob"]
    (job,) = [each for each in documents_of(OPERATOR) if each["kind"] == "ScheduledSparkApplication"]
    (container,) = night["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    for variables in (container["env"], job["spec"]["template"]["driver"]["env"]):
        (url,) = [each["value"] for each in variables if each["name"] == "PUSHGATEWAY_URL"]
        assert "/metrics/job/" in url


def test_an_audit_that_did_not_run_is_noticed() -> None:
    (group,) = YAML(typ="safe").load(RULES)["groups"]
    (overdue,) = [rule["expr"] for rule in group["rules"] if rule["alert"] == "PulsarLedgerAuditOverdue"]
    named = "pulsar_sidecar_audit_timestamp_seconds"
    assert overdue == f"time() - max by (cluster) ({named}) > 2 * 86400 or absent({named})"
